"""Classes of the script can be pickled, found by name and looked up in the source."""

import inspect
import pickle


class Point:
    def __init__(self, x):
        self.x = x


data = pickle.dumps(Point(3))
print(pickle.loads(data).x, Point.__module__, b"__main__" in data)
print(inspect.getsource(Point))
print(inspect.getfile(Point), inspect.getmodule(Point).__name__)
