"""Kubernetes: pods that run already, pods of a Job that runs `muster run`, and submitting such a Job."""
