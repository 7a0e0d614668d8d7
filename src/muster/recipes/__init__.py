"""Programs to start from: they run under every launcher, and `muster recipes copy NAME` makes one yours."""
