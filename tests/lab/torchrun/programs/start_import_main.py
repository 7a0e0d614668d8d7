"""The script imports itself under its own name, as some frameworks do to find a model: a second module."""

import sys

if __name__ == "__main__":
    import start_import_main

    print(start_import_main is sys.modules["__main__"], start_import_main.WORD, start_import_main.__file__)
    print(start_import_main.__spec__.name, sys.modules["start_import_main"].__name__)

WORD = __name__
