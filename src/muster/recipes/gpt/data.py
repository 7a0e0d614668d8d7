"""Text to tokens, either bytes or byte pairs, and tokens to sequences."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import muster


@dataclass(frozen=True)
class Tokenizer:
    """Byte pair encoding; without merges, a token is a byte."""

    merges: Sequence[Sequence[int]] = ()

    def encode(self, text: bytes) -> Tensor:
        """Return the tokens of a text."""
        tokens = torch.tensor(bytearray(text), dtype=torch.int16)
        for i, pair in enumerate(self.merges):
            tokens = merge(tokens, pair, 256 + i)
        return tokens

    def decode(self, token: int) -> bytes:
        """Return the text of a token."""
        return bytes([token]) if token < 256 else b"".join(map(self.decode, self.merges[token - 256]))


def train_tokenizer(text: bytes, vocabulary: int) -> Tokenizer:
    """Merge the most frequent pair of tokens again and again, until there are enough tokens."""
    tokens = Tokenizer().encode(text)
    merges: list[list[int]] = []
    while 256 + len(merges) < vocabulary and len(tokens) > 1:
        pairs = tokens[:-1].long() * vocabulary + tokens[1:]
        merges.append(list(divmod(int(pairs.bincount().argmax()), vocabulary)))
        tokens = merge(tokens, merges[-1], 255 + len(merges))
    return Tokenizer(merges)


def merge(tokens: Tensor, pair: Sequence[int], new: int) -> Tensor:
    """Replace each occurrence of a pair by one token; of aaa, the first two."""
    found = (tokens[:-1] == pair[0]) & (tokens[1:] == pair[1])
    place = torch.arange(len(found))
    first = torch.where(found & ~found.roll(1), place, 0).cummax(0).values
    found &= (place - first) % 2 == 0
    merged = tokens.clone()
    merged[:-1][found] = new
    return merged[torch.cat((torch.tensor([True]), ~found))]


class Text:
    """The tokens of a text, the same on all ranks, as sequences; the last tenth of them is for validation."""

    def __init__(self, world: muster.World, path: str | None, *, vocabulary: int, context: int) -> None:
        text = muster.together(world, lambda: read(path, 20 * context) if world.rank == 0 else b"")
        self.tokenizer = train_tokenizer(text[: 2**20], vocabulary) if vocabulary and text else Tokenizer()
        tokens = self.tokenizer.encode(text)
        facts: list[Any] = [self.tokenizer, len(tokens), len(text) / max(1, len(tokens))]
        dist.broadcast_object_list(facts, src=0)
        self.tokenizer, length, self.bytes_per_token = facts
        tokens = tokens if text else torch.empty(length, dtype=torch.int16)
        sent = tokens.view(torch.uint8).to(world.device)  # as bytes: neither gloo nor nccl knows 16-bit integers
        dist.broadcast(sent, src=0)
        self.tokens, self.context, self.sequences = sent.cpu().view(torch.int16), context, (length - 1) // context

    def take(self, indices: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return some sequences, and the token that follows each of their tokens."""
        tokens = self.tokens[indices.cpu()[:, None] * self.context + torch.arange(self.context + 1)].long()
        tokens = tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens
        return tokens[:, :-1], tokens[:, 1:]


def read(path: str | None, least: int) -> bytes:
    """Return the bytes of a file, or the help topics of Python."""
    if path is None:
        return "\n".join(topics.values()).encode()
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise muster.UsageError(f"cannot read --data {path}: {error.strerror}") from None
    if len(text) < least:
        raise muster.UsageError(f"--data {path} has {len(text)} bytes, fewer than 20 sequences of --context need")
    return text
