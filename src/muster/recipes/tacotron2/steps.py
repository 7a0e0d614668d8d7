"""The steps of the decoder's loop in plain torch: the reference for the Triton kernels, and used on a CPU."""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from .tape import Tape


class Steps(Protocol):
    """The operations of the loop for each frame `t`."""

    def cell_forward(self, tape: Tape, t: int) -> None:
        """The first LSTM's cell, its hidden state after dropout, and the attention's query."""
        ...

    def attention_forward(self, tape: Tape, t: int) -> None:
        """Attention weights and context."""
        ...

    def attention_backward(self, tape: Tape, t: int, *, d_before: Tensor) -> None:
        """From the gradient of the context to those of the query and of the previous frames' weights."""
        ...

    def cell_backward(self, tape: Tape, t: int) -> None:
        """From the gradient of the hidden state to that of the gates."""
        ...

    def second_cell_forward(self, tape: Tape, t: int) -> None:
        """The second LSTM's cell."""
        ...

    def second_cell_backward(self, tape: Tape, t: int) -> None:
        """The same backward."""
        ...


def choose(tape: Tape) -> Steps:
    """Triton on a GPU, for texts that fit its kernels; otherwise torch."""
    if tape.device.type == "cuda":
        try:
            from .kernels import LONGEST, TritonSteps
        except ImportError:  # some builds of torch have no Triton
            return TorchSteps()
        if tape.symbols <= LONGEST:
            return TritonSteps()
    return TorchSteps()


class TorchSteps:
    """The steps in plain torch."""

    def cell_forward(self, tape: Tape, t: int) -> None:
        """Write gates, cell and hidden state of frame `t`."""
        mask = tape.inputs.mask
        product = tape.state[t] @ tape.inputs.recurrent.T
        hidden = cell(product, tape.inputs.pre[t], tape.gates[t], tape.cells, t)
        tape.state[t + 1, :, tape.width :] = hidden if mask is None else hidden * mask[t] * tape.scale

    def attention_forward(self, tape: Tape, t: int) -> None:
        """Write query, weights, sum and context of frame `t`."""
        inputs = tape.inputs
        tape.queries[t] = tape.state[t + 1, :, tape.width :] @ inputs.query.T
        tanh = self._tanh(tape, t)
        energies = (tanh @ inputs.v.to(tape.exact)).masked_fill(tape.padding, -math.inf)
        weights = F.softmax(energies, 1)
        tape.weights[t + 1] = weights
        tape.sums[t + 1] = tape.sums[t] + weights
        tape.state[t + 1, :, : tape.width] = torch.bmm(weights[:, None].to(tape.dtype), inputs.memory).squeeze(1)

    def _tanh(self, tape: Tape, t: int) -> Tensor:
        looked = torch.stack((tape.weights[t], tape.sums[t]), 1).to(tape.dtype)
        location = F.conv1d(looked, tape.inputs.location, padding=tape.taps // 2).transpose(1, 2)
        return torch.tanh(tape.queries[t][:, None] + location.to(tape.exact) + tape.inputs.processed.to(tape.exact))

    def attention_backward(self, tape: Tape, t: int, *, d_before: Tensor) -> None:
        """The backward of `attention_forward`."""
        inputs = tape.inputs
        d_context = tape.d_state[t, :, : tape.width]
        if t + 1 < tape.frames:
            tape.scratch["d_recurrent"] = tape.d_gates[t + 1] @ inputs.recurrent
            d_context = d_context + tape.scratch["d_recurrent"][:, : tape.width]
        tape.d_contexts[t] = d_context
        d_weights = torch.bmm(inputs.memory, d_context[:, :, None]).squeeze(2).to(tape.exact)
        d_weights = d_weights + tape.d_weights[t] + tape.d_last + tape.d_sums
        weights = tape.weights[t + 1]
        d_energies = weights * (d_weights - (weights * d_weights).sum(1, keepdim=True))
        tanh = self._tanh(tape, t)
        tape.d_v += (d_energies[:, :, None] * tanh).sum(1)
        d_tanh = d_energies[:, :, None] * inputs.v.to(tape.exact) * (1 - tanh * tanh)
        d_before.copy_(d_tanh)
        tape.d_queries[t] = d_tanh.sum(1)
        d_location = d_tanh.to(tape.dtype).transpose(1, 2)
        d_looked = F.conv_transpose1d(d_location, inputs.location, padding=tape.taps // 2).to(tape.exact)
        tape.d_last.copy_(d_looked[:, 0])
        tape.d_sums += d_looked[:, 1]

    def cell_backward(self, tape: Tape, t: int) -> None:
        """The backward of `cell_forward`."""
        mask = tape.inputs.mask
        d_hidden = tape.d_state[t, :, tape.width :] + tape.d_queries[t] @ tape.inputs.query
        if t + 1 < tape.frames:
            d_hidden = d_hidden + tape.scratch["d_recurrent"][:, tape.width :]
        d_hidden = d_hidden if mask is None else d_hidden * mask[t] * tape.scale
        cell_back(d_hidden.to(tape.exact), tape.gates[t], tape.cells, t, tape.d_cells, tape.d_gates[t])

    def second_cell_forward(self, tape: Tape, t: int) -> None:
        """Write gates, cell and hidden state of the second LSTM."""
        mask = tape.inputs.second_mask
        product = tape.second_state[t] @ tape.inputs.second_recurrent.T
        hidden = cell(product, tape.second_pre[t], tape.second_gates[t], tape.second_cells, t)
        tape.second_state[t + 1] = hidden if mask is None else hidden * mask[t] * tape.second_scale

    def second_cell_backward(self, tape: Tape, t: int) -> None:
        """The backward of `second_cell_forward`."""
        mask = tape.inputs.second_mask
        d_hidden = tape.d_spoken[t]
        if t + 1 < tape.frames:
            d_hidden = d_hidden + tape.d_second_gates[t + 1] @ tape.inputs.second_recurrent
        d_hidden = (d_hidden if mask is None else d_hidden * mask[t] * tape.second_scale).to(tape.exact)
        cell_back(d_hidden, tape.second_gates[t], tape.second_cells, t, tape.d_second_cells, tape.d_second_gates[t])


def cell(product: Tensor, pre: Tensor, gates: Tensor, cells: Tensor, t: int) -> Tensor:
    """An LSTM cell: store the gates and the cell, and return the hidden state before dropout."""
    i, f, g, o = (product.to(cells.dtype) + pre.to(cells.dtype)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    gates.copy_(torch.cat((i, f, g, o), 1))
    cells[t + 1] = f * cells[t] + i * g
    return o * cells[t + 1].tanh()


def cell_back(d_hidden: Tensor, gates: Tensor, cells: Tensor, t: int, d_cells: Tensor, d_gates: Tensor) -> None:
    """The backward of `cell`; `d_cells` is passed from frame to frame."""
    i, f, g, o = gates.to(cells.dtype).chunk(4, 1)
    tanh = cells[t + 1].tanh()
    d_cell = d_cells + d_hidden * o * (1 - tanh * tanh)
    d_i, d_f, d_g = d_cell * g * i * (1 - i), d_cell * cells[t] * f * (1 - f), d_cell * i * (1 - g * g)
    d_gates.copy_(torch.cat((d_i, d_f, d_g, d_hidden * tanh * o * (1 - o)), 1))
    d_cells.copy_(d_cell * f)
