"""The agent: one process per host that starts, monitors and stops the ranks there.

The controller sends this package, `rank` and `shared` over the channel, and a host imports them under the name
`_muster_agent`. So hosts need nothing but Python 3.9 and the user's torch, and a `muster` installed there is never
shadowed. Hence only relative imports, only the standard library, and fast imports.
"""
