"""Writing to a pipe that nobody reads raises BrokenPipeError; children get SIGPIPE's default back."""

import os
import signal
import subprocess

reading, writing = os.pipe()
os.close(reading)
try:
    os.write(writing, b"x")
except BrokenPipeError as error:
    print(error)
print(signal.getsignal(signal.SIGPIPE))
print(subprocess.run("yes | head -1; echo ${PIPESTATUS[0]}", shell=True, executable="/bin/bash", stdout=-1).stdout)
