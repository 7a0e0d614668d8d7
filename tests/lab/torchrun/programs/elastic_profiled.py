# ranks: 1
"""cProfile and trace around a part of the script see the script only."""

import cProfile
import io
import pstats
import sys


def work():
    return sum(number * number for number in range(100))


profile = cProfile.Profile()
profile.runcall(work)
print(pstats.Stats(profile, stream=io.StringIO()).total_calls)
seen = []
sys.settrace(lambda frame, event, argument: seen.append(frame.f_code.co_name))
work()
sys.settrace(None)
print(seen)
