"""How the standard streams buffer: a line is out when it is printed, a part of one too."""

import os
import sys

print(sys.stdout.write_through, sys.stderr.write_through, sys.stderr.line_buffering)
print(sys.stdout.name, sys.stdout.mode, sys.stdin.name, sys.stderr.name, sys.stdout.newlines)
sys.stdout.write("python, ")
os.write(1, b"then the system\n")
sys.stdout.buffer.write(b"buffer, ")
os.write(1, b"then the system\n")
