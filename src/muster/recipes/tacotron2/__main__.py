"""`python -m muster.recipes.tacotron2`."""

from .options import parse

if __name__ == "__main__":
    args = parse()  # before torch is imported: --help and a wrong flag are answered at once
    from .train import main

    main(args)
