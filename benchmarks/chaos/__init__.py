"""Random jobs on lab hosts under random faults: what is left, what is reported, and whether the output is complete."""
