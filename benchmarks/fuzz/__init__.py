"""Feeds mutated lines to the controller and to the agent, and counts the exceptions that nobody caught."""
