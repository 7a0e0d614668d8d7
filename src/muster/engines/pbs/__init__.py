"""PBS: pbsdsh inside a job, qsub for a new one."""
