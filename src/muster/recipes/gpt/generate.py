"""Write text with the newest checkpoint of a run.

python -m muster.recipes.gpt.generate --out runs/gpt --prompt "The " --tokens 500 --temperature 0.8
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from muster.recipes._flag_types import integer, number, seed


def build_parser() -> argparse.ArgumentParser:
    """All options."""
    parser = argparse.ArgumentParser(
        prog="gpt.generate", description="Write text with the newest checkpoint of a run.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--out", default="runs/gpt", metavar="DIR", help="the directory that the run saved to (runs/gpt)")
    add("--prompt", default="\n", help="the text to continue (a newline)")
    add("--tokens", type=integer(), default=500, help="number of tokens to write (500)")
    add("--temperature", type=number(at_least=0), default=0.8, help="0 takes the likeliest token (0.8)")
    add("--top_k", type=integer(), default=200, help="choose among the K likeliest tokens (200)")
    add("--seed", type=seed(), default=0, help="(0)")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Load, and write to stdout while the text grows."""
    args = build_parser().parse_args(argv)
    import muster

    try:
        for text in generate(args):
            sys.stdout.buffer.write(text)
            sys.stdout.flush()
    except muster.MusterError as error:
        sys.stderr.write(error.report())
        sys.exit(error.exit_code)
    print()


def generate(args: argparse.Namespace) -> Iterator[bytes]:
    """The prompt, and then the text of one token after the other."""
    import torch

    import muster

    from .checkpoint import load, newest, read_about
    from .data import Tokenizer
    from .model import GPT, Config

    folder = newest(Path(args.out))
    if folder is None:
        raise muster.UsageError(
            f"{args.out} has no checkpoints", hint="train first: muster run -m muster.recipes.gpt --out DIR"
        )
    about = read_about(folder)
    shape = {name: value for name, value in about["fixed"].items() if name not in ("optimizer", "tokens")}
    tokenizer = Tokenizer(about["merges"])
    model = GPT(Config(**shape))
    load(folder, {"model": model.state_dict()})
    model.to("cuda" if torch.cuda.is_available() else "cpu").requires_grad_(False)
    torch.manual_seed(args.seed)
    yield args.prompt.encode()
    tokens = tokenizer.encode(args.prompt.encode()).long()[None].to(model.wte.device)
    for _ in range(args.tokens):
        scores = model(tokens[:, -model.config.context :])[0, : 256 + len(tokenizer.merges)]
        best, ids = scores.topk(min(args.top_k, len(scores)))
        chosen = torch.multinomial((best / args.temperature).softmax(0), 1) if args.temperature else torch.tensor([0])
        tokens = torch.cat((tokens, ids[chosen][None]), 1)
        yield tokenizer.decode([int(ids[chosen])])


if __name__ == "__main__":
    main()
