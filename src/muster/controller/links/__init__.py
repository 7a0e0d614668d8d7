"""Connections to the agents of a job."""
