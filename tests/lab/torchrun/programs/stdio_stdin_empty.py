"""Standard input is /dev/null: it ends at once."""

import sys

print(repr(sys.stdin.read()), sys.stdin.closed)
try:
    input()
except EOFError as error:
    print("EOFError", error)
