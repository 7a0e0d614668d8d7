"""A prompt without a newline, a progress bar with carriage returns, and no newline at the end."""

import sys
import time

sys.stdout.write("loading ")
time.sleep(0.2)
for step in range(5):
    sys.stdout.write(f"\r{step * 25}%")
    sys.stdout.flush()
print()
sys.stderr.write("no newline on stderr")
sys.stdout.write("no newline at the end")
