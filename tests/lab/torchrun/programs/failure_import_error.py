# exit: 1
# ranks: 1
"""Imports what is not there."""

import no_such_module_anywhere  # noqa: F401
