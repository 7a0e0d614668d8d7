"""The jobs of this user: where they are kept, and how other commands talk to a running one."""
