"""Watches a running job: its status, hangs, stragglers and ranks that do not exit."""
