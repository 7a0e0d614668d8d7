"""Every tensor of the decoder's loop, from its inputs to the gradients of its weights."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

PIECE = 64
"""Number of frames per chunk, in which the second LSTM follows the first and the largest gradients are stored."""


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Inputs of the loop; T frames, B clips, S symbols, E encoder width, H and D hidden, A attention width."""

    pre: Tensor
    """The contribution of frames and biases to the first LSTM's gates: [T, B, 4H]."""
    memory: Tensor
    """[B, S, E]."""
    processed: Tensor
    """[B, S, A]."""
    recurrent: Tensor
    """From [context, hidden] to the first LSTM's gates: [4H, E + H]."""
    query: Tensor
    """[A, H]."""
    location: Tensor
    """Convolution and dense layer in one: [A, 2, taps]."""
    v: Tensor
    """[A], in float32."""
    second_input: Tensor
    """From [context, hidden] to the second LSTM's gates: [4D, E + H]."""
    second_bias: Tensor
    second_recurrent: Tensor
    """[4D, D]."""
    lengths: Tensor
    """Number of symbols of each clip: [B]."""
    mask: Tensor | None
    """Dropout mask of the first hidden state: [T, B, H], 1 where a value is kept."""
    second_mask: Tensor | None

    def tensors(self) -> list[Tensor | None]:
        """All tensors in order, as arguments of an autograd function."""
        return [getattr(self, field.name) for field in fields(self)]

    @classmethod
    def of(cls, tensors: Sequence[Tensor | None]) -> Inputs:
        """Undo `tensors`."""
        return cls(**dict(zip((field.name for field in fields(cls)), tensors, strict=True)))  # pyright: ignore[reportArgumentType]


class Tape:
    """What the loop stores in the forward pass, reads in the backward pass, and leaves for the weights' gradients.

    Row t + 1 of `state`, `cells`, `weights` and `sums` is the result of frame t; row 0 is zero.
    """

    def __init__(self, inputs: Inputs, *, keep: float, second_keep: float) -> None:
        self.inputs, self.device = inputs, inputs.pre.device
        self.frames, self.clips, gates = inputs.pre.shape
        self.symbols, self.width = inputs.memory.shape[1:]
        self.hidden, self.second_hidden = gates // 4, inputs.second_recurrent.shape[1]
        self.attention, _, self.taps = inputs.location.shape
        self.scale = 1 / keep if inputs.mask is not None else 1.0
        self.second_scale = 1 / second_keep if inputs.second_mask is not None else 1.0
        self.dtype = inputs.pre.dtype
        # Cells, weights and sums accumulate over hundreds of frames, so they are at least float32.
        self.exact = torch.promote_types(self.dtype, torch.float32)
        rows, clips = self.frames, self.clips
        self.state = self._empty(rows + 1, clips, self.width + self.hidden)
        self.cells = self._empty(rows + 1, clips, self.hidden, exact=True)
        # Both are in one tensor with zero margins, so that the location convolution never leaves a row; kernels need
        # rows of a power of two.
        room, margin = power_of_two(self.symbols), self.taps // 2
        self.looked = self._zeros(rows + 1, clips, 2, room + power_of_two(self.taps), exact=True)
        self.weights = self.looked[:, :, 0, margin : margin + self.symbols]
        self.sums = self.looked[:, :, 1, margin : margin + self.symbols]
        self.queries = self._empty(rows, clips, self.attention, exact=True)
        self.gates = self._empty(rows, clips, 4 * self.hidden)
        self.second_pre = self._empty(rows, clips, 4 * self.second_hidden)
        self.second_state = self._empty(rows + 1, clips, self.second_hidden)
        self.second_cells = self._empty(rows + 1, clips, self.second_hidden, exact=True)
        self.second_gates = self._empty(rows, clips, 4 * self.second_hidden)
        for first_row in (self.state, self.cells, self.second_state, self.second_cells):
            first_row[0].zero_()
        self.padding = torch.arange(self.symbols, device=self.device) >= inputs.lengths[:, None]
        self.scratch: dict[str, Tensor] = {}
        """Additional tensors of the kernels."""

    def begin_backward(self, d_spoken: Tensor | None, d_weights: Tensor | None) -> None:
        """Store the incoming gradients, and allocate those of the loop."""
        for name in self.scratch.keys() & {"d_recurrent", "d_second_recurrent"}:
            self.scratch[name].zero_()  # there is no gradient from after the last frame, also in a second backward
        rows, clips = self.frames, self.clips
        self.d_spoken = torch.zeros_like(self.second_state[1:]) if d_spoken is None else d_spoken.contiguous()
        self.d_weights = torch.zeros_like(self.weights[1:]) if d_weights is None else d_weights
        """Gradient of the attention weights from outside the loop."""
        self.d_weights = self.d_weights.contiguous()
        self.d_state = torch.empty_like(self.state[1:])
        self.d_gates, self.d_second_gates = torch.empty_like(self.gates), torch.empty_like(self.second_gates)
        self.d_contexts = self._empty(rows, clips, self.width)
        self.d_queries = self._empty(rows, clips, self.attention)
        self.d_cells = self._zeros(clips, self.hidden, exact=True)
        self.d_second_cells = self._zeros(clips, self.second_hidden, exact=True)
        self.d_last = self._zeros(clips, self.symbols, exact=True)
        """Gradient of the weights of one frame through the next frame's location features."""
        self.d_sums = self._zeros(clips, self.symbols, exact=True)
        """The same through the sums of all later frames."""
        self.d_before = self._empty(2, min(PIECE, rows), clips, self.symbols, self.attention)
        """Gradient before the tanh, for the frames of two chunks; the largest tensor, so all chunks reuse it."""
        self.d_recurrent_weight = self._zeros(*self.inputs.recurrent.shape, exact=True)
        self.d_v = self._zeros(clips, self.attention, exact=True)
        self.d_processed = self._zeros(clips, self.symbols, self.attention, exact=True)
        self.d_location = self._zeros(self.attention, 2 * power_of_two(self.taps), exact=True)

    def gather_piece(self, start: int, end: int, d_before: Tensor) -> None:
        """Add the contribution of a chunk to the largest gradients of the first LSTM and the attention."""
        d_before = d_before[: end - start]
        self.d_recurrent_weight += self.d_gates[start:end].flatten(0, 1).T @ self.state[start:end].flatten(0, 1)
        self.d_processed += d_before.sum(0, dtype=self.exact)
        # Row t of `looked` is the location input of frame t: one column per tap, padded to a power of two.
        columns = self.looked[start:end].to(self.dtype).unfold(3, power_of_two(self.taps), 1)[:, :, :, : self.symbols]
        columns = columns.permute(0, 1, 3, 2, 4).reshape(-1, self.d_location.shape[1])
        self.d_location += d_before.view(-1, self.attention).T @ columns

    def gather_second(self) -> None:
        """Compute the gradients of the second LSTM's weights, which do not depend on the first LSTM's backward."""
        d_second = self.d_second_gates.flatten(0, 1)
        self.d_second_weights = (
            d_second.T @ self.state[1:].flatten(0, 1),
            d_second.sum(0, dtype=self.exact).to(self.dtype),
            d_second.T @ self.second_state[:-1].flatten(0, 1),
        )

    def gradients(self) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs, in order."""
        after = self.state[1:].flatten(0, 1)
        weights = self.weights[1:].to(self.dtype).permute(1, 2, 0)
        d_memory = torch.bmm(weights, self.d_contexts.transpose(0, 1))
        d_query = (self.d_queries.flatten(0, 1).T @ after)[:, self.width :]
        return (
            self.d_gates,
            d_memory,
            self.d_processed.to(self.dtype),
            self.d_recurrent_weight.to(self.dtype),
            d_query,
            self.d_location.view(self.attention, 2, -1)[:, :, : self.taps].to(self.dtype),
            self.d_v.sum(0),
            *self.d_second_weights,
            None,
            None,
            None,
        )

    def _empty(self, *shape: int, exact: bool = False) -> Tensor:
        return torch.empty(shape, dtype=self.exact if exact else self.dtype, device=self.device)

    def _zeros(self, *shape: int, exact: bool = False) -> Tensor:
        return self._empty(*shape, exact=exact).zero_()


def power_of_two(size: int) -> int:
    """The next power of two, at least 16, the minimum for tensor cores."""
    return max(16, 1 << (size - 1).bit_length())
