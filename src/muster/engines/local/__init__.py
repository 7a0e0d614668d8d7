"""This machine: the agent is a plain child process."""
