"""`muster check`: what is wrong with the hosts, before a job meets it.

A check is one file in `checks/`: what it asks each host (a probe: plain source that travels), how it judges all
answers together (a pure function), the symptom a user would have met, and the command that mends it.
"""
