"""The steps of the decoder's loop in Triton: per frame two kernels forward, two backward, and the matrix products."""

# Triton's language is Python that a type checker cannot follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false, reportCallIssue=false
# pyright: reportIndexIssue=false, reportArgumentType=false, reportOperatorIssue=false, reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .tape import Tape, power_of_two

CELL_CLIPS, CELL_HIDDEN = 16, 32
"""Number of clips and hidden units that one program of a cell kernel processes."""

PRODUCT_OUTPUTS, PRODUCT_DEPTH, PRODUCT_WARPS, PRODUCT_STAGES = 64, 64, 8, 4
PROGRAMS = 132
"""Maximum number of programs of a product: the number of multiprocessors of a Hopper GPU."""

WIDE, NARROW = (128, 3), (64, 2)
"""Number of memory columns that an attention kernel processes at a time, and its number of pipeline stages."""

LONGEST = 512
"""Maximum number of symbols for which these kernels fit into a multiprocessor."""


@triton.jit
def tanh(x):
    """tanh computed with the sigmoid, which every version of Triton has."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def product_kernel(
    left, right, parts, clips, depth, outputs, left_stride, depth_stride, output_stride,
    BLOCKS: tl.constexpr, PRECISION: tl.constexpr, CLIPS: tl.constexpr, OUTPUTS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A product of few rows with a large matrix, split along its depth into parts that the next kernel adds up.

    This gives every multiprocessor work without a separate kernel for the sum.
    """
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(1)
    b = tl.program_id(2) * CLIPS + tl.arange(0, CLIPS)
    k = tl.arange(0, DEPTH)
    total = tl.zeros((CLIPS, OUTPUTS), tl.float32)
    for block in range(BLOCKS):
        d = (split * BLOCKS + block) * DEPTH + k
        a = tl.load(left + b[:, None] * left_stride + d[None, :], (b[:, None] < clips) & (d[None, :] < depth), 0.0)
        where = right + d[:, None] * depth_stride + n[None, :] * output_stride
        w = tl.load(where, (d[:, None] < depth) & (n[None, :] < outputs), 0.0)
        total = tl.dot(a, w, total, input_precision=PRECISION)
    out = parts + (split * clips + b[:, None]) * outputs + n[None, :]
    tl.store(out, total, (b[:, None] < clips) & (n[None, :] < outputs))


@triton.jit
def add_up(parts, at, stride, inside, SPLIT: tl.constexpr):
    """Read and add up the parts written by `product_kernel`."""
    total = tl.load(parts + at, inside, 0.0)
    for part in tl.static_range(1, SPLIT):
        total += tl.load(parts + part * stride + at, inside, 0.0)
    return total


@triton.jit
def cell_forward_kernel(
    product, pre, gates, cell_before, cell_after, hidden_out, mask, query, parts,
    clips, hidden, hidden_stride, scale, attention,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, HAS_QUERY: tl.constexpr, PRECISION: tl.constexpr,
    CLIPS: tl.constexpr, HIDDEN: tl.constexpr, ATTENTION: tl.constexpr,
):  # fmt: skip
    """An LSTM cell with dropout, and the contribution of these hidden units to the attention's query."""
    b = tl.program_id(0) * CLIPS + tl.arange(0, CLIPS)
    h = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (b[:, None] < clips) & (h[None, :] < hidden)
    at = b[:, None] * (4 * hidden) + h[None, :]
    size = clips * 4 * hidden
    i = add_up(product, at, size, inside, SPLIT) + tl.load(pre + at, inside, 0.0).to(tl.float32)
    at_f = at + hidden
    f = add_up(product, at_f, size, inside, SPLIT) + tl.load(pre + at_f, inside, 0.0).to(tl.float32)
    at_g = at + 2 * hidden
    g = add_up(product, at_g, size, inside, SPLIT) + tl.load(pre + at_g, inside, 0.0).to(tl.float32)
    at_o = at + 3 * hidden
    o = add_up(product, at_o, size, inside, SPLIT) + tl.load(pre + at_o, inside, 0.0).to(tl.float32)
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
    clips, hidden, outside_stride, recurrent_width, scale, attention,
    SPLIT: tl.constexpr, HAS_MASK: tl.constexpr, HAS_QUERY: tl.constexpr, PRECISION: tl.constexpr,
    CLIPS: tl.constexpr, HIDDEN: tl.constexpr, ATTENTION: tl.constexpr,
):  # fmt: skip
    """The backward of `cell_forward_kernel`."""
    b = tl.program_id(0) * CLIPS + tl.arange(0, CLIPS)
    h = tl.program_id(1) * HIDDEN + tl.arange(0, HIDDEN)
    inside = (b[:, None] < clips) & (h[None, :] < hidden)
    d_hidden = tl.load(d_outside + b[:, None] * outside_stride + h[None, :], inside, 0.0).to(tl.float32)
    at_recurrent = (b[:, None] + 1) * recurrent_width - hidden + h[None, :]  # the last columns of each row
    d_hidden += add_up(d_recurrent, at_recurrent, clips * recurrent_width, inside, SPLIT)
    if HAS_QUERY:
        a = tl.arange(0, ATTENTION)
        dq = tl.load(
            d_query + b[:, None] * attention + a[None, :], (b[:, None] < clips) & (a[None, :] < attention), 0.0
        )
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
def looked_at(looked, s, row, TAPS: tl.constexpr):
    """The input of the location convolution: for each symbol of `s` its neighbors' weights, then their sums."""
    k = tl.arange(0, 2 * TAPS)
    return tl.load(looked + (k // TAPS)[None, :] * row + s[:, None] + (k % TAPS)[None, :])


@triton.jit
def attention_forward_kernel(
    parts, queries, processed, memory, location, v, lengths, looked, looked_out, context_out,
    clips, symbols, attention, width, margin, row, state_stride,
    PARTS: tl.constexpr, PARTS_UP: tl.constexpr, PRECISION: tl.constexpr, ATTENTION: tl.constexpr, TAPS: tl.constexpr,
    WIDTH: tl.constexpr, SYMBOLS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Energies, softmax and context of one clip."""
    b = tl.program_id(0)
    a = tl.arange(0, ATTENTION)
    good_a = a < attention
    p = tl.arange(0, PARTS_UP)
    some = tl.load(
        parts + (p[:, None] * clips + b) * attention + a[None, :], (p[:, None] < PARTS) & good_a[None, :], 0.0
    )
    query = tl.sum(some, 0)
    tl.store(queries + b * attention + a, query, good_a)
    k = tl.arange(0, 2 * TAPS)
    kernel = tl.load(location + k[:, None] * attention + a[None, :], good_a[None, :], 0.0)
    value = tl.load(v + a, good_a, 0.0)
    length = tl.load(lengths + b)
    s = tl.arange(0, SYMBOLS)
    seen = looked_at(looked + b * 2 * row, s, row, TAPS)
    energy = tl.dot(seen.to(kernel.dtype), kernel, input_precision=PRECISION)
    where = (b * symbols + s[:, None]) * attention + a[None, :]
    energy += tl.load(processed + where, (s[:, None] < symbols) & good_a[None, :], 0.0).to(tl.float32)
    energies = tl.sum(tanh(energy + query[None, :]) * value[None, :], 1)
    energies = tl.where(s < length, energies, -float("inf"))
    powers = tl.exp(energies - tl.max(energies, 0))
    weights = powers / tl.sum(powers, 0)
    here = b * 2 * row + margin + s
    tl.store(looked_out + here, weights, s < symbols)
    before = tl.load(looked + here + row, s < symbols, 0.0)
    tl.store(looked_out + here + row, before + weights, s < symbols)
    # One row of a product is padded to sixteen, the minimum for tensor cores.
    shares = tl.broadcast_to(weights[None, :], (16, SYMBOLS)).to(kernel.dtype)
    for start in range(0, WIDTH, COLUMNS):
        e = start + tl.arange(0, COLUMNS)
        good = (s[:, None] < length) & (e[None, :] < width)
        piece = tl.load(memory + (b * symbols + s[:, None]) * width + e[None, :], good, 0.0)
        context = tl.sum(tl.dot(shares, piece, input_precision=PRECISION), 0) / 16
        tl.store(context_out + b * state_stride + e, context, e < width)


@triton.jit
def attention_backward_kernel(
    d_outside, d_recurrent, d_weights_outside, d_contexts, queries, processed, memory, location, location_back, v,
    lengths, looked, looked_out, d_last, d_sums, d_v, d_query, d_energies, shifts,
    clips, symbols, attention, width, margin, row, state_stride,
    SPLIT: tl.constexpr, PRECISION: tl.constexpr, ATTENTION: tl.constexpr, TAPS: tl.constexpr, WIDTH: tl.constexpr,
    SYMBOLS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The backward of `attention_forward_kernel`."""
    b = tl.program_id(0)
    length = tl.load(lengths + b)
    s = tl.arange(0, SYMBOLS)
    whole = tl.arange(0, WIDTH)
    d_context = tl.load(d_outside + b * state_stride + whole, whole < width, 0.0).to(tl.float32)
    d_context += add_up(d_recurrent, b * state_stride + whole, clips * state_stride, whole < width, SPLIT)
    tl.store(d_contexts + b * width + whole, d_context, whole < width)
    tl.debug_barrier()  # values stored by other threads of this program are read below
    total = tl.zeros((SYMBOLS, 16), tl.float32)
    sixteen = tl.arange(0, 16)  # one column of a product is padded to sixteen, the minimum for tensor cores
    for start in range(0, WIDTH, COLUMNS):
        e = start + tl.arange(0, COLUMNS)
        good = (s[:, None] < length) & (e[None, :] < width)
        piece = tl.load(memory + (b * symbols + s[:, None]) * width + e[None, :], good, 0.0)
        column = tl.load(d_contexts + b * width + e[:, None] + 0 * sixteen[None, :], e[:, None] < width, 0.0)
        total = tl.dot(piece, column, total, input_precision=PRECISION)
    real = s < length
    flat = b * symbols + s
    d_weights = tl.sum(total, 1) / 16 + tl.load(d_weights_outside + flat, real, 0.0)
    d_weights += tl.load(d_last + flat, real, 0.0) + tl.load(d_sums + flat, real, 0.0)
    weight = tl.load(looked_out + b * 2 * row + margin + s, real, 0.0)
    d_energy = weight * (d_weights - tl.sum(weight * d_weights, 0))
    a = tl.arange(0, ATTENTION)
    good_a = a < attention
    k = tl.arange(0, 2 * TAPS)
    kernel = tl.load(location + k[:, None] * attention + a[None, :], good_a[None, :], 0.0)
    value = tl.load(v + a, good_a, 0.0)
    query = tl.load(queries + b * attention + a, good_a, 0.0)
    seen = looked_at(looked + b * 2 * row, s, row, TAPS)
    before = tl.dot(seen.to(kernel.dtype), kernel, input_precision=PRECISION)
    where = flat[:, None] * attention + a[None, :]
    good_energy = (s[:, None] < symbols) & good_a[None, :]
    before += tl.load(processed + where, good_energy, 0.0).to(tl.float32)
    curved = tanh(before + query[None, :])
    so_far = tl.load(d_v + b * attention + a, good_a, 0.0)
    tl.store(d_v + b * attention + a, so_far + tl.sum(d_energy[:, None] * curved, 0), good_a)
    d_before = d_energy[:, None] * value[None, :] * (1 - curved * curved)
    tl.store(d_energies + where, d_before, good_energy)
    tl.store(d_query + b * attention + a, tl.sum(d_before, 0), good_a)
    kernel_back = tl.load(location_back + a[:, None] * (2 * TAPS) + k[None, :], good_a[:, None], 0.0)
    back = tl.dot(d_before.to(kernel_back.dtype), kernel_back, input_precision=PRECISION)
    # Symbol j was seen by symbol j - tap + margin through this tap. Each tap has its own row, shifted by its position,
    # so that sums along diagonals become sums of columns. Positions that no symbol reaches stay zero.
    length_of_row = SYMBOLS + 2 * TAPS
    room = shifts + b * (2 * TAPS) * length_of_row + TAPS
    tl.store(room + k[None, :] * length_of_row + s[:, None] + (k % TAPS)[None, :] - margin, back)
    tl.debug_barrier()
    tap = tl.arange(0, TAPS)
    columns = room + tap[:, None] * length_of_row + s[None, :]
    tl.store(d_last + flat, tl.sum(tl.load(columns), 0), s < symbols)
    more = tl.sum(tl.load(columns + TAPS * length_of_row), 0)
    tl.store(d_sums + flat, tl.load(d_sums + flat, s < symbols, 0.0) + more, s < symbols)


class TritonSteps:
    """The steps on a GPU."""

    def cell_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        made = scratch(tape)
        multiply(tape, tape.state[t], tape.inputs.recurrent.T, made["product"])
        self._cell(
            tape, made["product"], tape.inputs.pre[t], tape.gates[t], tape.cells, t,
            tape.state[t + 1, :, tape.width :], tape.inputs.mask, tape.scale, tape.inputs.query, made["parts"],
        )  # fmt: skip

    def second_cell_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        made = scratch(tape)
        multiply(tape, tape.second_state[t], tape.inputs.second_recurrent.T, made["second_product"])
        self._cell(
            tape, made["second_product"], tape.second_pre[t], tape.second_gates[t], tape.second_cells, t,
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
            SPLIT=len(product), HAS_MASK=mask is not None, HAS_QUERY=query is not None, PRECISION=precision(tape),
            CLIPS=CELL_CLIPS, HIDDEN=CELL_HIDDEN, ATTENTION=power_of_two(tape.attention), num_warps=4,
        )  # fmt: skip

    def attention_forward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        inputs, made = tape.inputs, scratch(tape)
        attention_forward_kernel[(tape.clips,)](
            made["parts"], tape.queries[t], inputs.processed, inputs.memory, made["location"], inputs.v, inputs.lengths,
            tape.looked[t], tape.looked[t + 1], tape.state[t + 1],
            tape.clips, tape.symbols, tape.attention, tape.width, tape.taps // 2, tape.looked.shape[3],
            tape.state.stride(1),
            PARTS=made["parts"].shape[0], PARTS_UP=triton.next_power_of_2(made["parts"].shape[0]), **shapes(tape),
        )  # fmt: skip

    def attention_backward(self, tape: Tape, t: int, *, d_before: Tensor) -> None:
        """See `TorchSteps`."""
        inputs, made = tape.inputs, scratch(tape)
        if t + 1 < tape.frames:
            multiply(tape, tape.d_gates[t + 1], inputs.recurrent, made["d_recurrent"])
        attention_backward_kernel[(tape.clips,)](
            tape.d_state[t], made["d_recurrent"], tape.d_weights[t], tape.d_contexts[t], tape.queries[t],
            inputs.processed, inputs.memory, made["location"], made["location_back"], inputs.v, inputs.lengths,
            tape.looked[t], tape.looked[t + 1],
            tape.d_last, tape.d_sums, tape.d_v, tape.d_queries[t], d_before, made["shifts"],
            tape.clips, tape.symbols, tape.attention, tape.width, tape.taps // 2, tape.looked.shape[3],
            tape.state.stride(1), SPLIT=len(made["d_recurrent"]), **shapes(tape),
        )  # fmt: skip

    def cell_backward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        self._cell_back(
            tape, tape.d_state[t, :, tape.width :], scratch(tape)["d_recurrent"], tape.gates[t], tape.cells, t,
            tape.inputs.mask, tape.scale, tape.d_cells, tape.d_gates[t], tape.d_queries[t], tape.inputs.query,
        )  # fmt: skip

    def second_cell_backward(self, tape: Tape, t: int) -> None:
        """See `TorchSteps`."""
        made = scratch(tape)
        if t + 1 < tape.frames:
            multiply(tape, tape.d_second_gates[t + 1], tape.inputs.second_recurrent, made["d_second_recurrent"])
        self._cell_back(
            tape, tape.d_spoken[t], made["d_second_recurrent"], tape.second_gates[t], tape.second_cells, t,
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
            clips, hidden, d_outside.stride(0), d_recurrent.shape[2], scale, tape.attention,
            SPLIT=len(d_recurrent), HAS_MASK=mask is not None, HAS_QUERY=query is not None, PRECISION=precision(tape),
            CLIPS=CELL_CLIPS, HIDDEN=CELL_HIDDEN, ATTENTION=power_of_two(tape.attention), num_warps=4,
        )  # fmt: skip


def multiply(tape: Tape, left: Tensor, right: Tensor, parts: Tensor) -> None:
    """`left @ right` as parts, [parts, clips, outputs], that the next kernel adds up."""
    clips, depth = left.shape
    outputs = right.shape[1]
    rows = 128 if clips > 64 else 64
    product_kernel[(triton.cdiv(outputs, PRODUCT_OUTPUTS), len(parts), triton.cdiv(clips, rows))](
        left, right, parts, clips, depth, outputs, left.stride(0), right.stride(0), right.stride(1),
        BLOCKS=triton.cdiv(triton.cdiv(depth, PRODUCT_DEPTH), len(parts)), PRECISION=precision(tape),
        CLIPS=rows, OUTPUTS=PRODUCT_OUTPUTS, DEPTH=PRODUCT_DEPTH,
        num_warps=PRODUCT_WARPS, num_stages=PRODUCT_STAGES if tape.dtype == torch.bfloat16 else 2,
    )  # fmt: skip


def scratch(tape: Tape) -> dict[str, Tensor]:
    """Tensors that only the kernels need, created once per tape."""
    made = tape.scratch
    if "parts" not in made:
        taps, clips = power_of_two(tape.taps), tape.clips
        # [channel and tap, attention], padded with zeros to a power of two of taps.
        location = tape.inputs.location.new_zeros(2, taps, tape.attention)
        location[:, : tape.taps] = tape.inputs.location.permute(1, 2, 0)
        made["location"] = location.flatten(0, 1)
        made["location_back"] = made["location"].T.contiguous()

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float32, device=tape.device)

        def product(outputs: int) -> Tensor:
            return zeros(splits(outputs, clips), clips, outputs)

        made["parts"] = zeros(triton.cdiv(tape.hidden, CELL_HIDDEN), clips, tape.attention)
        made["shifts"] = zeros(clips, 2 * taps, power_of_two(tape.symbols) + 2 * taps)
        made["product"], made["second_product"] = product(4 * tape.hidden), product(4 * tape.second_hidden)
        made["d_recurrent"] = product(tape.width + tape.hidden)
        made["d_second_recurrent"] = product(tape.second_hidden)
    return made


def splits(outputs: int, clips: int) -> int:
    """Number of parts of a product: about one program per multiprocessor, at most 8 parts."""
    programs = triton.cdiv(outputs, PRODUCT_OUTPUTS) * triton.cdiv(clips, 128)
    return max(1, min(8, PROGRAMS // programs))


def shapes(tape: Tape) -> dict[str, Any]:
    """The sizes for which the attention kernels are compiled."""
    columns, stages = tiles(tape)
    return {
        "PRECISION": precision(tape),
        "ATTENTION": power_of_two(tape.attention),
        "TAPS": power_of_two(tape.taps),
        "WIDTH": power_of_two(tape.width),
        "SYMBOLS": power_of_two(tape.symbols),
        "COLUMNS": min(columns, power_of_two(tape.width)),
        "num_warps": 8,
        "num_stages": stages,
    }


def tiles(tape: Tape) -> tuple[int, int]:
    """Wide tiles if they fit into the shared memory of a multiprocessor: 108 KiB for 128 symbols in bfloat16."""
    if tape.device.type != "cuda":
        return NARROW
    columns, stages = WIDE
    needed = (power_of_two(tape.symbols) * columns * stages + 6144) * tape.inputs.memory.element_size()
    properties = torch.cuda.get_device_properties(tape.device)
    room: int = getattr(properties, "shared_memory_per_block_optin", 48 * 1024)
    return WIDE if needed <= room else NARROW


def cell_grid(clips: int, hidden: int) -> tuple[int, int]:
    """The grid of a cell kernel."""
    return triton.cdiv(clips, CELL_CLIPS), triton.cdiv(hidden, CELL_HIDDEN)


def precision(tape: Tape) -> str:
    """Precision of float32 products in kernels, the same as in torch."""
    return "tf32" if tape.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"
