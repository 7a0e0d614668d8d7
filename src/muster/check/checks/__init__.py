"""One file for each thing that can be wrong: symptom, probe, judge, fix."""

from __future__ import annotations

QUICK = (
    "system",
    "own_name",
    "shm",
)
"""The checks that cost milliseconds, in the order in which findings of one severity are told."""
