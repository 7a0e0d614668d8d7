"""How ranks and hosts ended, which failed first, and why."""
