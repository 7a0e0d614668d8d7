"""The fast decoder: the same results as `Decoder.forward`, with as much as possible hoisted out of the Python loop.

With teacher forcing only the attention LSTM and the attention feed each other from frame to frame. So

- the prenet and its part of the first LSTM's input are one product over all frames;
- the second LSTM does not feed back, so its input and the projection to frames and gates are also one product each;
- the location convolution and the dense layer after it are linear, so they become one convolution;
- in the backward pass, only gradients between frames stay in the loop; those of all weights are sums over many frames,
  which run concurrently on a GPU or after the loop.

This leaves three steps per frame (a product, a cell, the attention) and two for the second LSTM, which follows the
first in chunks of `tape.PIECE` frames, concurrently on a GPU. `tape.py` has the tensors, `steps.py` the steps in plain
torch, `kernels.py` the same in Triton.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import steps
from .model import Decoder, shifted
from .streams import Side
from .tape import PIECE, Inputs, Tape


def fast_decoder(decoder: Decoder, memory: Tensor, lengths: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Equivalent to `Decoder.forward`."""
    kind = memory.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else memory.dtype
    frames = decoder.prenet(shifted(mels))
    with torch.autocast(kind, enabled=False):
        return _decode(decoder, memory.to(dtype), lengths, frames.to(dtype), dtype)


def _decode(
    decoder: Decoder, memory: Tensor, lengths: Tensor, frames: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    sizes, attention = decoder.sizes, decoder.attention_layer
    hidden = sizes.attention_rnn_dim
    first, second = decoder.attention_rnn, decoder.decoder_rnn
    from_frame, from_context = first.weight_ih.to(dtype).split([sizes.prenet_dim, sizes.encoder_embedding_dim], 1)
    from_hidden, from_seen = second.weight_ih.to(dtype).split([hidden, sizes.encoder_embedding_dim], 1)
    location = attention.location_layer
    kernel = torch.einsum("af,fck->ack", location.location_dense.weight, location.location_conv.conv.weight)
    masks = [
        draw_mask((*frames.shape[:2], width), p, frames.device) if decoder.training and p else None
        for width, p in ((hidden, sizes.p_attention_dropout), (sizes.decoder_rnn_dim, sizes.p_decoder_dropout))
    ]
    inputs = Inputs(
        pre=F.linear(frames, from_frame, (first.bias_ih + first.bias_hh).to(dtype)),
        memory=memory,
        processed=F.linear(memory, attention.memory_layer.weight.to(dtype)),
        recurrent=torch.cat((from_context, first.weight_hh.to(dtype)), 1),
        query=attention.query_layer.weight.to(dtype),
        location=kernel.to(dtype),
        v=attention.v.weight[0],
        second_input=torch.cat((from_seen, from_hidden), 1),
        second_bias=(second.bias_ih + second.bias_hh).to(dtype),
        second_recurrent=second.weight_hh.to(dtype),
        lengths=lengths,
        mask=masks[0],
        second_mask=masks[1],
    )
    keep, second_keep = 1 - sizes.p_attention_dropout, 1 - sizes.p_decoder_dropout
    context, spoken, weights = Loop.apply(keep, second_keep, *inputs.tensors())  # pyright: ignore[reportGeneralTypeIssues]
    # Channels and gate in one product, padded to a multiple of 8 outputs; otherwise tensor cores are much slower.
    channels, spare = sizes.n_mel_channels, -(sizes.n_mel_channels + 1) % 8
    weight = F.pad(torch.cat((decoder.linear_projection.weight, decoder.gate_layer.weight)), (0, 0, 0, spare)).to(dtype)
    bias = F.pad(torch.cat((decoder.linear_projection.bias, decoder.gate_layer.bias)), (0, spare)).to(dtype)
    by_spoken, by_context = weight.split([sizes.decoder_rnn_dim, sizes.encoder_embedding_dim], 1)
    made = (F.linear(spoken, by_spoken, bias) + F.linear(context, by_context)).transpose(0, 1)
    return made[..., :channels], made[..., channels], weights.transpose(0, 1)


def draw_mask(shape: tuple[int, ...], p: float, device: torch.device) -> Tensor:
    """Draw a dropout mask for all frames at once: 1 where a value is kept."""
    return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - p)


class Loop(torch.autograd.Function):
    """Both LSTMs and the attention over all frames, with a custom backward."""

    @staticmethod
    def forward(ctx: Any, keep: float, second_keep: float, *tensors: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the context of each frame, the second LSTM's output, and the weights."""
        tape = Tape(Inputs.of(tensors), keep=keep, second_keep=second_keep)
        ops, side = steps.choose(tape), Side(tape.device)
        for start, end in pieces(tape.frames):
            for t in range(start, end):
                ops.cell_forward(tape, t)
                ops.attention_forward(tape, t)
            with side.after_main():
                torch.addmm(
                    tape.inputs.second_bias,
                    tape.state[start + 1 : end + 1].flatten(0, 1),
                    tape.inputs.second_input.T,
                    out=tape.second_pre[start:end].view(-1, tape.second_pre.shape[2]),
                )
                for t in range(start, end):
                    ops.second_cell_forward(tape, t)
        side.join()
        ctx.tape = tape
        ctx.set_materialize_grads(False)
        return tape.state[1:, :, : tape.width], tape.second_state[1:], tape.weights[1:]

    @staticmethod
    def backward(
        ctx: Any, d_context: Tensor | None, d_spoken: Tensor | None, d_weights: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        """Go backward through the frames, then compute the gradients of the network's weights."""
        tape: Tape = ctx.tape
        tape.begin_backward(d_spoken, d_weights)
        ops, side, third = steps.choose(tape), Side(tape.device), Side(tape.device, 1)
        side.start()
        third.start()
        for number, (start, end) in enumerate(reversed(list(pieces(tape.frames)))):
            with side.stream():
                for t in reversed(range(start, end)):
                    ops.second_cell_backward(tape, t)
                torch.mm(
                    tape.d_second_gates[start:end].flatten(0, 1),
                    tape.inputs.second_input,
                    out=tape.d_state[start:end].flatten(0, 1),
                )
                if d_context is not None:
                    tape.d_state[start:end, :, : tape.width] += d_context[start:end]
            side.main_waits()
            for t in reversed(range(start, end)):
                ops.attention_backward(tape, t, d_before=tape.d_before[number % 2, t - start])
                ops.cell_backward(tape, t)
            third.main_waits()  # for the sums of the previous chunk, because the next one overwrites `d_before`
            with third.after_main():
                tape.gather_piece(start, end, tape.d_before[number % 2])
        with side.stream():
            tape.gather_second()
        side.join()
        third.join()
        return (None, None, *tape.gradients())


def pieces(frames: int) -> Iterator[tuple[int, int]]:
    """Split the frames into chunks."""
    for start in range(0, frames, PIECE):
        yield start, min(start + PIECE, frames)
