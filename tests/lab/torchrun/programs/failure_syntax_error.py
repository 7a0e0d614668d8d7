# exit: 1
# ranks: 1
"""A script that does not compile."""

print("never printed")
return 3  # noqa: F706
