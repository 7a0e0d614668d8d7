"""Text to tokens, and which tokens each rank takes in a step."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import muster

WORD = re.compile(rb" ?[A-Za-z\x80-\xff]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9\x80-\xff]+|\s+(?!\S)|\s")
"""What BPE merges within: a word, digits or punctuation with the space before it, or white space."""

SAMPLE = 2**24
"""Number of bytes that BPE is trained on; more changes little."""


@dataclass(frozen=True)
class Tokenizer:
    """Byte pair encoding; without merges, a token is a byte."""

    merges: Sequence[tuple[int, int]] = ()

    @property
    def vocabulary(self) -> int:
        """Number of tokens, rounded up to a multiple of 64."""
        return -(-(256 + len(self.merges)) // 64) * 64

    @cached_property
    def _texts(self) -> list[bytes]:
        texts = [bytes([i]) for i in range(256)]
        for left, right in self.merges:
            texts.append(texts[left] + texts[right])
        return texts

    def encode(self, text: bytes) -> Tensor:
        """Return the tokens of a text as 16-bit integers; see `Data.take`."""
        if not self.merges:
            return torch.frombuffer(bytearray(text), dtype=torch.uint8).to(torch.int16)
        ranks = {pair: 256 + i for i, pair in enumerate(self.merges)}
        known: dict[bytes, list[int]] = {}
        tokens: list[int] = []
        for word in WORD.findall(text):
            if word not in known:
                ids = list(word)
                while ids[1:] and (best := min(pairwise(ids), key=lambda pair: ranks.get(pair, 1 << 30))) in ranks:
                    ids = merge(ids, best, ranks[best])
                known[word] = ids
            tokens += known[word]
        return torch.tensor(tokens, dtype=torch.int32).to(torch.int16)

    def decode(self, tokens: Sequence[int]) -> bytes:
        """Return the text of tokens; those that no text has are left out."""
        return b"".join(self._texts[token] for token in tokens if token < len(self._texts))

    @staticmethod
    def train(text: bytes, vocabulary: int) -> Tokenizer:
        """Merge the most frequent pair of tokens again and again, until there are enough tokens."""
        words = [(list(word), count) for word, count in Counter(WORD.findall(text)).items()]
        counts: Counter[tuple[int, int]] = Counter()
        where: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for i, (ids, count) in enumerate(words):
            for pair in pairwise(ids):
                counts[pair] += count
                where[pair].add(i)
        merges: list[tuple[int, int]] = []
        while 256 + len(merges) < vocabulary and counts:
            best = max(counts, key=lambda pair: (counts[pair], pair))
            new = 256 + len(merges)
            merges.append(best)
            for i in where.pop(best):
                ids, count = words[i]
                for pair in pairwise(ids):
                    counts[pair] -= count
                ids[:] = merge(ids, best, new)
                for pair in pairwise(ids):
                    counts[pair] += count
                    where[pair].add(i)
            counts = +counts
        return Tokenizer(tuple(merges))


def merge(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """Replace each occurrence of a pair by one token."""
    merged: list[int] = []
    for each in ids:
        if merged and (merged[-1], each) == pair:
            merged[-1] = new
        else:
            merged.append(each)
    return merged


@dataclass(frozen=True, kw_only=True)
class Data:
    """The tokens of a text, the same on all ranks."""

    tokenizer: Tokenizer
    tokens: Tensor
    """As unsigned 16-bit integers, for which torch has no type with all operations: see `take`."""
    bytes_per_token: float
    context: int
    seed: int

    @property
    def train_length(self) -> int:
        """Number of tokens to train on: all but the last tenth."""
        return len(self.tokens) * 9 // 10

    def batch(self, step: int, batch: int) -> Tensor:
        """Where the sequences of a step begin; the same on all ranks, however many there are."""
        generator = torch.Generator().manual_seed((self.seed + (step << 20)) % 2**63)
        return torch.randint(self.train_length - self.context, (batch,), generator=generator)

    def validation(self, most: int) -> Tensor:
        """Where the sequences to validate on begin."""
        return torch.arange(self.train_length, len(self.tokens) - self.context, self.context)[:most]

    def take(self, starts: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return sequences of tokens, and the token that follows each of theirs."""
        tokens = self.tokens[starts[:, None] + torch.arange(self.context + 1)].long() & 0xFFFF
        if device.type == "cuda":
            tokens = tokens.pin_memory().to(device, non_blocking=True)
        return tokens[:, :-1], tokens[:, 1:]


def load(world: muster.World, path: str | None, *, vocabulary: int, context: int, seed: int) -> Data:
    """Read and encode a text on rank 0, and send it to all ranks; vocabulary 256 means bytes."""
    found: list[tuple[Tokenizer, int, float] | None] = [None]
    tokens = torch.empty(0, dtype=torch.int16)
    text = muster.together(world, lambda: read(path) if world.rank == 0 else b"")
    if world.rank == 0:
        tokenizer = Tokenizer.train(text[:SAMPLE], vocabulary) if vocabulary > 256 else Tokenizer()
        tokens = tokenizer.encode(text)
        found = [(tokenizer, len(tokens), len(text) / len(tokens))]
    dist.broadcast_object_list(found, src=0)
    assert found[0] is not None
    tokenizer, length, bytes_per_token = found[0]
    wire = torch.device("cpu") if world.backend == "gloo" else world.device
    shared = (
        tokens.view(torch.uint8).to(wire)
        if world.rank == 0
        else torch.empty(2 * length, dtype=torch.uint8, device=wire)
    )
    dist.broadcast(shared, src=0)  # as bytes: neither gloo nor nccl knows 16-bit integers
    if (length - length * 9 // 10) <= context:
        raise muster.UsageError(
            f"a tenth of the text has {length // 10} tokens, fewer than a sequence of {context}",
            hint="use a longer text or a shorter --context",
        )
    return Data(
        tokenizer=tokenizer,
        tokens=shared.cpu().view(torch.int16),
        bytes_per_token=bytes_per_token,
        context=context,
        seed=seed,
    )


def read(path: str | None) -> bytes:
    """Return the bytes of a file, or the help topics of Python."""
    if path is None:
        from pydoc_data.topics import topics  # pyright: ignore[reportMissingModuleSource]

        return "\n".join(topics.values()).encode()
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise muster.UsageError(f"cannot read --data {path}: {error.strerror}") from None
    if not text:
        raise muster.UsageError(f"--data {path} is empty")
    return text
