"""The PBS engine: pbsdsh inside a job, qsub for a new one."""
