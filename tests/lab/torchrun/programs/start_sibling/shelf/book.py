"""A module in a package beside the script."""
