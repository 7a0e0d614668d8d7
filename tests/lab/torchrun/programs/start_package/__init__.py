"""A package that is run with -m."""

print("package", __name__)
