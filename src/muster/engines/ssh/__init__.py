"""Hosts over the user's own OpenSSH."""
