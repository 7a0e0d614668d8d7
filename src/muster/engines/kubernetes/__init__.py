"""Kubernetes: jobs in pods that are running already, and what Kubernetes says about them."""
