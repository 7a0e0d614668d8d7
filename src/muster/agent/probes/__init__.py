"""The probes of `muster check`: functions that each answer one question about this host, in milliseconds.

Each returns plain data. `check_probes` runs them in a child process that can be killed.
"""
