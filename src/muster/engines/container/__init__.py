"""Runs the agents of any engine in containers."""
