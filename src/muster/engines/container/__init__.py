"""Containers around the agents of any engine."""
