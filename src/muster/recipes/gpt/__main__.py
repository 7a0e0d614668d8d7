"""`python -m muster.recipes.gpt`."""

from .options import parse

if __name__ == "__main__":
    args = parse()  # before importing torch, so that --help and errors in flags are instant
    from .train import main

    main(args)
