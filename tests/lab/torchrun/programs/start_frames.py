# row: 16
"""No frame is below the script's own."""

import inspect
import sys
import traceback

print(sys._getframe().f_back)
print([(frame.filename, frame.function) for frame in inspect.stack()])
print(inspect.stack()[-1].code_context)
print("".join(traceback.format_stack()))


def depth():
    frame, count = sys._getframe(), 0
    while frame := frame.f_back:
        count += 1
    return count


print(depth(), inspect.currentframe().f_code.co_name)
