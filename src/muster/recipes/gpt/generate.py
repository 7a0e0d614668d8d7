"""Write text with the newest checkpoint of a run: python -m muster.recipes.gpt.generate --prompt "The "."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import argparse
import codecs
from collections.abc import Iterator
from typing import Any

import muster
from muster.recipes._flag_types import integer, number, seed


def main() -> None:
    """Write to stdout while the text grows."""
    parser = argparse.ArgumentParser(prog="gpt.generate", description="Write text.", allow_abbrev=False)
    add = parser.add_argument
    add("--out", default="runs/gpt", metavar="DIR", help="directory that a run saved to (runs/gpt)")
    add("--prompt", default="\n", help="text to continue (a newline)")
    add("--tokens", type=integer(), default=500, help="number of tokens to write (500)")
    add("--temperature", type=number(at_least=0), default=0.8, help="0 takes the likeliest token (0.8)")
    add("--top_k", type=integer(), default=200, help="choose among the K likeliest tokens (200)")
    add("--seed", type=seed(), default=0, help="(0)")
    args = parser.parse_args()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a token may be a part of a character
    try:
        with muster.init() as world:
            for text in generate(world, args):
                print(decoder.decode(text), end="", flush=True)
        print()
    except muster.MusterError as error:
        parser.exit(error.exit_code, error.report())


def generate(world: muster.World, args: argparse.Namespace) -> Iterator[bytes]:
    """The prompt, and then the text of one token after the other."""
    import torch  # not before the flags are parsed

    from . import data, model, train

    facts, checkpoints = dict[str, Any](), muster.Checkpoints(args.out, world)
    if not checkpoints.begin({"facts": train.stateful(facts)}, resume=True):
        raise muster.UsageError(f"{args.out} has no checkpoints", hint="train with --out first")
    gpt, tokenizer = model.GPT(model.Config(**facts["shape"])).to(world.device), data.Tokenizer(facts["merges"])
    checkpoints.begin({"model": gpt}, resume=True)
    torch.manual_seed(args.seed)
    prompt = (args.prompt or "\n").encode(errors="surrogateescape")
    yield prompt
    tokens = tokenizer.encode(prompt).long()[None].to(world.device)
    gpt.requires_grad_(False)
    for _ in range(args.tokens):
        scores = gpt(tokens[:, -gpt.config.context :])[0, : 256 + len(tokenizer.merges)]
        best, ids = scores.topk(min(args.top_k, len(scores)) if args.temperature else 1)
        token = ids[torch.multinomial((best / (args.temperature or 1)).softmax(0), 1)]
        tokens = torch.cat((tokens, token[None]), 1)
        yield tokenizer.decode(int(token))


if __name__ == "__main__":
    main()
