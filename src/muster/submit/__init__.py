"""Batch jobs: from what the user asked for to a script that a person would have written, and into the queue with it.

Everything but `activation` (which looks at files) and `queue` (which runs the scheduler's program) is pure.
"""
