"""The local engine: the agent is a child process on this machine."""
