# exit: 1
# ranks: 1
# env: PYTHONWARNINGS=error::UserWarning
"""PYTHONWARNINGS turns a warning into an exception."""

import warnings

warnings.warn("an error now")
