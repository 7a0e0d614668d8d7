"""subprocess with sys.executable: the child has the rank's environment, and no descriptors of the launcher."""

import os
import subprocess
import sys

code = "import os, sys; print(os.environ['RANK'], sys.argv, sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
done = subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True)
print(done.returncode, done.stdout, done.stderr)
print(subprocess.run(["sh", "-c", "exit 7"]).returncode, subprocess.check_output(["cat"], input=b"through a pipe"))
print(os.system("exit 3") >> 8, os.popen("echo popen").read())
code = "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"
print(subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True).stdout)
