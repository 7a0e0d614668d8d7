"""Batch jobs: from the user's request to a readable batch script, and its submission.

Everything but `activation` (which reads files) and `queue` (which runs the scheduler's program) is pure.
"""
