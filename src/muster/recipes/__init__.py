"""Programs to start from: they run under every launcher, and `muster recipes copy NAME` gives you a copy to edit."""
