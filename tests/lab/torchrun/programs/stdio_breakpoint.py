# row: 8
# ranks: 1
# stdin: p x + 1\nc\n
"""breakpoint() with commands from standard input."""

x = 41
breakpoint()
print("after")
