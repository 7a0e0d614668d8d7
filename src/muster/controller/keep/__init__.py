"""Agents that stay when their job has ended, so that the next run does not start new ones."""
