"""The ssh engine: hosts are reached with the user's own OpenSSH."""
