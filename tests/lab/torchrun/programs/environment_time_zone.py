# env: TZ=Asia/Tokyo
"""The time zone and the locale are those of the user's environment, and can be changed."""

import locale
import os
import time

print(time.tzname, time.strftime("%H:%M", time.localtime(0)))
os.environ["TZ"] = "UTC"
time.tzset()
print(time.tzname, time.strftime("%H:%M", time.localtime(0)), locale.setlocale(locale.LC_ALL), locale.getlocale())
