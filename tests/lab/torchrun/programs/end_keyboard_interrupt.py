# exit: 130
# ranks: 1
"""An uncaught KeyboardInterrupt ends Python by SIGINT."""

print("before")
raise KeyboardInterrupt("by the script")
