"""`muster.launch`: a Python function on every rank, called from a script or a notebook."""
