"""`python -m muster` is the `muster` command."""

import sys

from muster.cli import main

if __name__ == "__main__":
    sys.exit(main())
