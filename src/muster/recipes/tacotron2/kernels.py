"""The steps of the decoder's loop in Triton: two kernels for each frame forward, two backward, and the products."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tape import Tape

CELL_CLIPS, CELL_HIDDEN = 32, 32
"""Clips and hidden units that one program of a cell kernel takes."""

ROWS = 64
"""Symbols that an attention kernel takes at a time."""


@triton.jit
def tanh(x):
    """Through the sigmoid, which every version of Triton has."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def cell_forward_kernel(
    product, pre, gates, cell_before, cell_after, hidden_out, mask, query, parts,
    clips, hidden, hidden_stride, scale, attention,
    HAS_MASK: tl.constexpr, HAS_QUERY: tl.constexpr, PRECISION: tl.constexpr,
    CLIPS: tl.constexpr, HIDDEN: tl.constexpr, ATTENTION: tl.constexpr,
):  # fmt: skip
    """An LSTM cell with dropout, and this part of the hidden units' share of the attention's query."""
    b = tl.program_id(0) * CLIPS + tl.arange(0, CLIPS)
    h = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (b[:, None] < clips) & (h[None, :] < hidden)
    at = b[:, None] * (4 * hidden) + h[None, :]
    i = tl.load(product + at, inside, 0.0).to(tl.float32) + tl.load(pre + at, inside, 0.0).to(tl.float32)
    at_f = at + hidden
    f = tl.load(product + at_f, inside, 0.0).to(tl.float32) + tl.load(pre + at_f, inside, 0.0).to(tl.float32)
    at_g = at + 2 * hidden
    g = tl.load(product + at_g, inside, 0.0).to(tl.float32) + tl.load(pre + at_g, inside, 0.0).to(tl.float32)
    at_o = at + 3 * hidden
    o = tl.load(product + at_o, inside, 0.0).to(tl.float32) + tl.load(pre + at_o, inside, 0.0).to(tl.float32)
    i, f, g, o = tl.sigmoid(i), tl.sigmoid(f), tanh(g), tl.sigmoid(o)
    tl.store(gates + at, i, inside)
    tl.store(gates + at_f, f, inside)
    tl.store(gates + at_g, g, inside)
    tl.store(gates + at_o, o, inside)
    at_cell = b[:, None] * hidden + h[None, :]
    cell = f * tl.load(cell_before + at_cell, inside, 0.0) + i * g
    tl.store(cell_after + at_cell, cell, inside)
    out = o * tanh(cell)
    if HAS_MASK:
        out = out * tl.load(mask + at_cell, inside, 0).to(tl.float32) * scale
    tl.store(hidden_out + b[:, None] * hidden_stride + h[None, :], out, inside)
    if HAS_QUERY:
        a = tl.arange(0, ATTENTION)
        some = tl.load(query + a[None, :] * hidden + h[:, None], (a[None, :] < attention) & (h[:, None] < hidden), 0.0)
        part = tl.dot(tl.where(inside, out, 0.0).to(some.dtype), some, input_precision=PRECISION)
        where = parts + (tl.program_id(1) * clips + b[:, None]) * attention + a[None, :]
        tl.store(where, part, (b[:, None] < clips) & (a[None, :] < attention))


@triton.jit
def cell_backward_kernel(
    d_outside, d_recurrent, d_query, query, gates, cell_before, cell_after, mask, d_cells, d_gates,
    clips, hidden, outside_stride, recurrent_stride, scale, attention,
    HAS_MASK: tl.constexpr, HAS_QUERY: tl.constexpr, PRECISION: tl.constexpr,
    CLIPS: tl.constexpr, HIDDEN: tl.constexpr, ATTENTION: tl.constexpr,
):  # fmt: skip
    """Undo `cell_forward_kernel`."""
    b = tl.program_id(0) * CLIPS + tl.arange(0, CLIPS)
    h = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (b[:, None] < clips) & (h[None, :] < hidden)
    d_hidden = tl.load(d_outside + b[:, None] * outside_stride + h[None, :], inside, 0.0).to(tl.float32)
    d_hidden += tl.load(d_recurrent + b[:, None] * recurrent_stride + h[None, :], inside, 0.0).to(tl.float32)
    if HAS_QUERY:
        a = tl.arange(0, ATTENTION)
        dq = tl.load(d_query + b[:, None] * attention + a[None, :], (b[:, None] < clips) & (a[None, :] < attention), 0.0)
        some = tl.load(query + a[:, None] * hidden + h[None, :], (a[:, None] < attention) & (h[None, :] < hidden), 0.0)
        d_hidden += tl.dot(dq, some, input_precision=PRECISION)
    at_cell = b[:, None] * hidden + h[None, :]
    if HAS_MASK:
        d_hidden = d_hidden * tl.load(mask + at_cell, inside, 0).to(tl.float32) * scale
    at = b[:, None] * (4 * hidden) + h[None, :]
    i = tl.load(gates + at, inside, 0.0).to(tl.float32)
    f = tl.load(gates + at + hidden, inside, 0.0).to(tl.float32)
    g = tl.load(gates + at + 2 * hidden, inside, 0.0).to(tl.float32)
    o = tl.load(gates + at + 3 * hidden, inside, 0.0).to(tl.float32)
    curved = tanh(tl.load(cell_after + at_cell, inside, 0.0))
    d_cell = tl.load(d_cells + at_cell, inside, 0.0) + d_hidden * o * (1 - curved * curved)
    before = tl.load(cell_before + at_cell, inside, 0.0)
    tl.store(d_gates + at, d_cell * g * i * (1 - i), inside)
    tl.store(d_gates + at + hidden, d_cell * before * f * (1 - f), inside)
    tl.store(d_gates + at + 2 * hidden, d_cell * i * (1 - g * g), inside)
    tl.store(d_gates + at + 3 * hidden, d_hidden * curved * o * (1 - o), inside)
    tl.store(d_cells + at_cell, d_cell * f, inside)


@triton.jit
def looked_at(last, sums, s, symbols, taps, TAPS: tl.constexpr):
    """What the location convolution sees: for each symbol of `s` its neighbours' weights, then their sums."""
    k = tl.arange(0, 2 * TAPS)
    tap = k % TAPS
    place = s[:, None] + tap[None, :] - taps // 2
    good = (tap[None, :] < taps) & (place >= 0) & (place < symbols) & (s[:, None] < symbols)
    from_last = tl.load(last + place, good & (k[None, :] < TAPS), 0.0)
    return from_last + tl.load(sums + place, good & (k[None, :] >= TAPS), 0.0)


@triton.jit
def attention_forward_kernel(
    parts, queries, processed, memory, location, v, lengths, last, sums, weights_out, sums_out, context_out,
    clips, symbols, attention, width, taps, state_stride,
    PARTS: tl.constexpr, PARTS_UP: tl.constexpr, PRECISION: tl.constexpr, ATTENTION: tl.constexpr, TAPS: tl.constexpr,
    WIDTH: tl.constexpr, SYMBOLS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Energies, softmax and context of one clip."""
    b = tl.program_id(0)
    a = tl.arange(0, ATTENTION)
    good_a = a < attention
    p = tl.arange(0, PARTS_UP)
    some = tl.load(parts + (p[:, None] * clips + b) * attention + a[None, :], (p[:, None] < PARTS) & good_a[None, :], 0.0)
    query = tl.sum(some, 0)
    tl.store(queries + b * attention + a, query, good_a)
    k = tl.arange(0, 2 * TAPS)
    kernel = tl.load(location + k[:, None] * attention + a[None, :], good_a[None, :], 0.0)
    value = tl.load(v + a, good_a, 0.0)
    length = tl.load(lengths + b)
    for start in range(0, SYMBOLS, ROWS):
        s = start + tl.arange(0, ROWS)
        seen = looked_at(last + b * symbols, sums + b * symbols, s, symbols, taps, TAPS)
        energy = tl.dot(seen.to(kernel.dtype), kernel, input_precision=PRECISION)
        where = (b * symbols + s[:, None]) * attention + a[None, :]
        energy += tl.load(processed + where, (s[:, None] < symbols) & good_a[None, :], 0.0).to(tl.float32)
        energy = tl.sum(tanh(energy + query[None, :]) * value[None, :], 1)
        tl.store(weights_out + b * symbols + s, energy, s < symbols)
    tl.debug_barrier()  # what other threads of this program have stored is read below
    every = tl.arange(0, SYMBOLS)
    energies = tl.load(weights_out + b * symbols + every, every < length, -float("inf"))
    powers = tl.exp(energies - tl.max(energies, 0))
    weights = powers / tl.sum(powers, 0)
    tl.debug_barrier()
    tl.store(weights_out + b * symbols + every, weights, every < symbols)
    before = tl.load(sums + b * symbols + every, every < symbols, 0.0)
    tl.store(sums_out + b * symbols + every, before + weights, every < symbols)
    tl.debug_barrier()
    e = tl.arange(0, WIDTH)
    context = tl.zeros((WIDTH,), tl.float32)
    for start in range(0, SYMBOLS, 32):
        s = start + tl.arange(0, 32)
        good = (s[:, None] < length) & (e[None, :] < width)
        piece = tl.load(memory + (b * symbols + s[:, None]) * width + e[None, :], good, 0.0).to(tl.float32)
        share = tl.load(weights_out + b * symbols + s, s < length, 0.0)
        context += tl.sum(piece * share[:, None], 0)
    tl.store(context_out + b * state_stride + e, context, e < width)


@triton.jit
def attention_backward_kernel(
    d_outside, d_recurrent, d_contexts, queries, processed, memory, location, location_back, v, lengths, last, sums,
    weights, d_last, d_sums, d_v, d_query, d_energies, row, shifts,
    symbols, attention, width, taps, state_stride,
    PRECISION: tl.constexpr, ATTENTION: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr, SYMBOLS: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Undo `attention_forward_kernel`."""
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    e = tl.arange(0, WIDTH)
    good_e = e < width
    d_context = tl.load(d_outside + b * state_stride + e, good_e, 0.0).to(tl.float32)
    d_context += tl.load(d_recurrent + b * state_stride + e, good_e, 0.0).to(tl.float32)
    tl.store(d_contexts + b * width + e, d_context, good_e)
    for start in range(0, SYMBOLS, 32):
        s = start + tl.arange(0, 32)
        good = (s[:, None] < length) & good_e[None, :]
        piece = tl.load(memory + (b * symbols + s[:, None]) * width + e[None, :], good, 0.0).to(tl.float32)
        tl.store(row + b * symbols + s, tl.sum(piece * d_context[None, :], 1), s < symbols)
    tl.debug_barrier()
    every = tl.arange(0, SYMBOLS)
    real = every < length
    d_weights = tl.load(row + b * symbols + every, real, 0.0)
    d_weights += tl.load(d_last + b * symbols + every, real, 0.0) + tl.load(d_sums + b * symbols + every, real, 0.0)
    weight = tl.load(weights + b * symbols + every, real, 0.0)
    d_energy = weight * (d_weights - tl.sum(weight * d_weights, 0))
    tl.debug_barrier()
    tl.store(row + b * symbols + every, d_energy, every < symbols)
    tl.debug_barrier()
    a = tl.arange(0, ATTENTION)
    good_a = a < attention
    k = tl.arange(0, 2 * TAPS)
    kernel = tl.load(location + k[:, None] * attention + a[None, :], good_a[None, :], 0.0)
    kernel_back = tl.load(location_back + a[:, None] * (2 * TAPS) + k[None, :], good_a[:, None], 0.0)
    value = tl.load(v + a, good_a, 0.0)
    query = tl.load(queries + b * attention + a, good_a, 0.0)
    sum_v = tl.zeros((ATTENTION,), tl.float32)
    sum_query = tl.zeros((ATTENTION,), tl.float32)
    for start in range(0, SYMBOLS, ROWS):
        s = start + tl.arange(0, ROWS)
        seen = looked_at(last + b * symbols, sums + b * symbols, s, symbols, taps, TAPS)
        before = tl.dot(seen.to(kernel.dtype), kernel, input_precision=PRECISION)
        where = (b * symbols + s[:, None]) * attention + a[None, :]
        good = (s[:, None] < symbols) & good_a[None, :]
        before += tl.load(processed + where, good, 0.0).to(tl.float32)
        curved = tanh(before + query[None, :])
        d_row = tl.load(row + b * symbols + s, s < symbols, 0.0)
        sum_v += tl.sum(d_row[:, None] * curved, 0)
        d_before = d_row[:, None] * value[None, :] * (1 - curved * curved)
        tl.store(d_energies + where, d_before, good)
        sum_query += tl.sum(d_before, 0)
        back = tl.dot(d_before.to(kernel_back.dtype), kernel_back, input_precision=PRECISION)
        tl.store(shifts + (b * SYMBOLS + s[:, None]) * (2 * TAPS) + k[None, :], back)
    tl.store(d_query + b * attention + a, sum_query, good_a)
    tl.store(d_v + b * attention + a, tl.load(d_v + b * attention + a, good_a, 0.0) + sum_v, good_a)
    tl.debug_barrier()
    # Symbol j was seen by symbol j - tap + taps // 2 through this tap: sums along the diagonals of `shifts`.
    tap = tl.arange(0, TAPS)
    for start in range(0, SYMBOLS, ROWS):
        j = start + tl.arange(0, ROWS)
        by = j[:, None] - tap[None, :] + taps // 2
        good = (tap[None, :] < taps) & (by >= 0) & (by < symbols)
        from_shifts = shifts + (b * SYMBOLS + by) * (2 * TAPS) + tap[None, :]
        tl.store(d_last + b * symbols + j, tl.sum(tl.load(from_shifts, good, 0.0), 1), j < symbols)
        more = tl.sum(tl.load(from_shifts + TAPS, good, 0.0), 1)
        so_far = tl.load(d_sums + b * symbols + j, j < symbols, 0.0)
        tl.store(d_sums + b * symbols + j, so_far + more, j < symbols)


class TritonSteps:
    """The steps on a GPU."""

    def cell_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        made = scratch(tape)
        self._cell(
            tape, tape.product, tape.inputs.pre[t], tape.gates[t], tape.cells, t,
            tape.state[t + 1, :, tape.width :], tape.inputs.mask, tape.scale, tape.inputs.query, made["parts"],
        )  # fmt: skip

    def second_cell_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        self._cell(
            tape, tape.second_product, tape.second_pre[t], tape.second_gates[t], tape.second_cells, t,
            tape.second_state[t + 1], tape.inputs.second_mask, tape.second_scale, None, None,
        )  # fmt: skip

    def _cell(
        self, tape: Tape, product: Tensor, pre: Tensor, gates: Tensor, cells: Tensor, t: int, out: Tensor,
        mask: Tensor | None, scale: float, query: Tensor | None, parts: Tensor | None,
    ) -> None:  # fmt: skip
        clips, hidden = out.shape
        cell_forward_kernel[cell_grid(clips, hidden)](
            product, pre, gates, cells[t], cells[t + 1], out, product if mask is None else mask[t],
            product if query is None else query, product if parts is None else parts,
            clips, hidden, out.stride(0), scale, tape.attention,
            HAS_MASK=mask is not None, HAS_QUERY=query is not None, PRECISION=precision(tape),
            CLIPS=CELL_CLIPS, HIDDEN=CELL_HIDDEN, ATTENTION=power(tape.attention), num_warps=4,
        )  # fmt: skip

    def attention_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        inputs, made = tape.inputs, scratch(tape)
        attention_forward_kernel[(tape.clips,)](
            made["parts"], tape.queries[t], inputs.processed, inputs.memory, made["location"], inputs.v, inputs.lengths,
            tape.weights[t], tape.sums[t], tape.weights[t + 1], tape.sums[t + 1], tape.state[t + 1],
            tape.clips, tape.symbols, tape.attention, tape.width, tape.taps, tape.state.stride(1),
            PARTS=made["parts"].shape[0], PARTS_UP=triton.next_power_of_2(made["parts"].shape[0]), **shapes(tape),
        )  # fmt: skip

    def attention_backward(self, tape: Tape, t: int, *, slot: int) -> None:
        """See `TorchSteps`."""
        inputs, made = tape.inputs, scratch(tape)
        attention_backward_kernel[(tape.clips,)](
            tape.d_state[t], tape.d_recurrent, tape.d_contexts[t], tape.queries[t], inputs.processed, inputs.memory,
            made["location"], made["location_back"], inputs.v, inputs.lengths, tape.weights[t], tape.sums[t],
            tape.weights[t + 1], tape.d_last, tape.d_sums, tape.d_v, tape.d_queries[t],
            tape.d_before[slot], made["row"], made["shifts"],
            tape.symbols, tape.attention, tape.width, tape.taps, tape.state.stride(1), **shapes(tape),
        )  # fmt: skip

    def cell_backward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        self._cell_back(
            tape, tape.d_state[t, :, tape.width :], tape.d_recurrent[:, tape.width :], tape.gates[t], tape.cells, t,
            tape.inputs.mask, tape.scale, tape.d_cells, tape.d_gates[t], tape.d_queries[t], tape.inputs.query,
        )  # fmt: skip

    def second_cell_backward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        self._cell_back(
            tape, tape.d_spoken[t], tape.d_second_recurrent, tape.second_gates[t], tape.second_cells, t,
            tape.inputs.second_mask, tape.second_scale, tape.d_second_cells, tape.d_second_gates[t], None, None,
        )  # fmt: skip

    def _cell_back(
        self, tape: Tape, d_outside: Tensor, d_recurrent: Tensor, gates: Tensor, cells: Tensor, t: int,
        mask: Tensor | None, scale: float, d_cells: Tensor, d_gates: Tensor, d_query: Tensor | None,
        query: Tensor | None,
    ) -> None:  # fmt: skip
        clips, hidden = d_outside.shape
        cell_backward_kernel[cell_grid(clips, hidden)](
            d_outside, d_recurrent, gates if d_query is None else d_query, gates if query is None else query, gates,
            cells[t], cells[t + 1], gates if mask is None else mask[t], d_cells, d_gates,
            clips, hidden, d_outside.stride(0), d_recurrent.stride(0), scale, tape.attention,
            HAS_MASK=mask is not None, HAS_QUERY=query is not None, PRECISION=precision(tape),
            CLIPS=CELL_CLIPS, HIDDEN=CELL_HIDDEN, ATTENTION=power(tape.attention), num_warps=4,
        )  # fmt: skip


def scratch(tape: Tape) -> dict[str, Tensor]:
    """Tensors that only the kernels need, made once for a tape."""
    made = tape.scratch
    if "parts" not in made:
        taps = power(tape.taps)
        # [channel and tap, attention], with zeros where a channel has fewer taps than a power of two.
        location = tape.inputs.location.new_zeros(2, taps, tape.attention)
        location[:, : tape.taps] = tape.inputs.location.permute(1, 2, 0)
        made["location"] = location.flatten(0, 1)
        made["location_back"] = made["location"].T.contiguous()
        symbols = max(ROWS, triton.next_power_of_2(tape.symbols))

        def empty(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.float32, device=tape.device)

        made["parts"] = empty(triton.cdiv(tape.hidden, CELL_HIDDEN), tape.clips, tape.attention)
        made["row"] = empty(tape.clips, tape.symbols)
        made["shifts"] = empty(tape.clips, symbols, 2 * taps)
    return made


def shapes(tape: Tape) -> dict[str, Any]:
    """The sizes that the attention kernels are compiled for."""
    return {
        "PRECISION": precision(tape),
        "ATTENTION": power(tape.attention),
        "TAPS": power(tape.taps),
        "WIDTH": power(tape.width),
        "SYMBOLS": max(ROWS, triton.next_power_of_2(tape.symbols)),
        "ROWS": ROWS,
        "num_warps": 8,
    }


def cell_grid(clips: int, hidden: int) -> tuple[int, int]:
    """Programs of a cell kernel."""
    return triton.cdiv(clips, CELL_CLIPS), triton.cdiv(hidden, CELL_HIDDEN)


def power(size: int) -> int:
    """The power of two that holds it; 16 at least, which is the smallest that tensor cores take."""
    return max(16, triton.next_power_of_2(size))


def precision(tape: Tape) -> str:
    """How products of float32 are made inside kernels: as torch makes them."""
    return "tf32" if tape.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"
