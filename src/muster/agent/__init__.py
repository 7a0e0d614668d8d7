"""The agent: one process per host that starts, watches and ends the ranks there.

This package travels with `rank` and `shared`: the controller sends their source over the channel, and a host imports
them under the name `_muster_agent`, so hosts need nothing but Python 3.9 and the user's torch, and a `muster`
installed there is never shadowed. Hence relative imports only, the standard library only, and fast imports.
"""
