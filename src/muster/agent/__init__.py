"""The agent: one process per host that starts, watches and ends the ranks there.

This package travels: the controller sends its source over the channel, and a host imports it under the name
`_muster_agent`, so hosts need nothing but Python 3.9 and the user's torch, and a `muster` installed on the
host is never shadowed. Hence relative imports only, the standard library only, and modules that import fast.
"""
