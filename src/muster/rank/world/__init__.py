"""`muster.init()`: detects the launcher of a rank and joins its world. Never imports the controller."""
