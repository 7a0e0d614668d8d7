"""Which engine runs a job, and on which hosts; one folder per engine."""
