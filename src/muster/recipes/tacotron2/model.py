"""The network, with NVIDIA's names in its state dict; `Decoder.forward` is the reference loop for all others.

model = Tacotron2(ModelSizes())
outputs = model(text, text_lengths, mels)          training, with teacher forcing
outputs = model.infer(text, text_lengths)          each frame computed from the previous one, until the gate stops it
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .streams import Side


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """The sizes of the network; the defaults have 28,193,153 parameters."""

    n_mel_channels: int = 80
    n_symbols: int = 148
    symbols_embedding_dim: int = 512
    encoder_kernel_size: int = 5
    encoder_n_convolutions: int = 3
    encoder_embedding_dim: int = 512
    decoder_rnn_dim: int = 1024
    prenet_dim: int = 256
    p_attention_dropout: float = 0.1
    p_decoder_dropout: float = 0.1
    attention_rnn_dim: int = 1024
    attention_dim: int = 128
    attention_location_n_filters: int = 32
    attention_location_kernel_size: int = 31
    postnet_embedding_dim: int = 512
    postnet_kernel_size: int = 5
    postnet_n_convolutions: int = 5


@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The outputs of the network for a batch."""

    mels: Tensor
    """Before the postnet: [batch, mel channels, frames]."""
    refined: Tensor
    """After the postnet."""
    gates: Tensor
    """Logits of the probability that the clip has ended: [batch, frames]."""
    alignments: Tensor
    """Attention weights: [batch, frames, symbols]; each row adds up to 1."""


class Linear(nn.Module):
    """A linear layer with Xavier initialization, under NVIDIA's name."""

    def __init__(self, inputs: int, outputs: int, *, bias: bool = True, gain: str = "linear") -> None:
        super().__init__()
        self.linear_layer = nn.Linear(inputs, outputs, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, nn.init.calculate_gain(gain))  # pyright: ignore[reportArgumentType]

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs]."""
        return self.linear_layer.weight

    @property
    def bias(self) -> Tensor:
        """[outputs]."""
        return self.linear_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Apply it to the last dimension."""
        return self.linear_layer(x)


class Conv(nn.Module):
    """A convolution that keeps the length, with Xavier initialization, under NVIDIA's name."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, bias: bool = True, gain: str = "linear") -> None:
        super().__init__()
        self._padding = (kernel - 1) // 2
        self.conv = nn.Conv1d(inputs, outputs, kernel, padding=self._padding, bias=bias)
        nn.init.xavier_uniform_(self.conv.weight, nn.init.calculate_gain(gain))  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, 1, length], see `as_image`."""
        return F.conv2d(x, self.conv.weight[:, :, None], self.conv.bias, padding=(0, self._padding))


class Norm(nn.BatchNorm1d):
    """A normalization of [batch, channels, 1, length]."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept four dimensions."""


def stage(inputs: int, outputs: int, kernel: int, gain: str) -> nn.Sequential:
    """A convolution and its normalization."""
    return nn.Sequential(Conv(inputs, outputs, kernel, gain=gain), Norm(outputs))


def as_image(x: Tensor) -> Tensor:
    """[batch, channels, length] to [batch, channels, 1, length], with the channels of a position together in memory.

    Tensor cores need this order, and torch has it only for images; otherwise it is changed and restored in every layer.
    """
    return x[:, :, None].contiguous(memory_format=torch.channels_last)


class Encoder(nn.Module):
    """Three convolutions and a bidirectional LSTM, from symbols to the decoder's memory."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        width = sizes.encoder_embedding_dim
        self.convolutions = nn.ModuleList(
            stage(width, width, sizes.encoder_kernel_size, "relu") for _ in range(sizes.encoder_n_convolutions)
        )
        self.lstm = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.dropout = 0.5

    def forward(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        """[batch, width, symbols] to [batch, symbols, width], zero in the padding of each text."""
        x = as_image(embedded)
        for convolution in self.convolutions:
            x = F.dropout(F.relu(convolution(x)), self.dropout, self.training)
        x = x.squeeze(2).transpose(1, 2)
        # Two passes without packing: packed sequences need the lengths on the CPU, which a CUDA graph does not allow.
        # The backward direction starts at the last symbol of each text, so the padding never affects a symbol.
        places = torch.arange(x.shape[1], device=x.device)
        inside = places < lengths[:, None]
        backwards = torch.where(inside, lengths[:, None] - 1 - places, places)[:, :, None]
        side = Side(x.device)
        with side.after_main():
            back = self._run(x.gather(1, backwards.expand(-1, -1, x.shape[2])), "_reverse")
            back = back.gather(1, backwards.expand(-1, -1, back.shape[2]))
        there = self._run(x, "")
        side.join()
        return torch.cat((there, back), 2) * inside[:, :, None]

    def _run(self, x: Tensor, direction: str) -> Tensor:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        weights = [getattr(self.lstm, name + direction) for name in names]
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weights = x.to(dtype), [weight.to(dtype) for weight in weights]
        start = x.new_zeros(1, x.shape[0], self.lstm.hidden_size)
        with warnings.catch_warnings():  # cuDNN makes the weights of both directions contiguous itself
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            output, _, _ = torch.lstm(x, (start, start), weights, True, 1, 0.0, self.training, False, True)
        return output


class Prenet(nn.Module):
    """Two small layers between a frame and the decoder; their dropout is on in training and inference."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        widths = (sizes.n_mel_channels, sizes.prenet_dim, sizes.prenet_dim)
        self.layers = nn.ModuleList(Linear(widths[i], widths[i + 1], bias=False) for i in range(2))
        self.dropout = 0.5

    def forward(self, x: Tensor) -> Tensor:
        """Apply both layers to the last dimension."""
        for layer in self.layers:
            x = F.dropout(F.relu(layer(x)), self.dropout)
        return x


class LocationLayer(nn.Module):
    """Features of the previous attention weights: those of the last step and the sum of all steps."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        filters, kernel = sizes.attention_location_n_filters, sizes.attention_location_kernel_size
        self.location_conv = Conv(2, filters, kernel, bias=False)
        self.location_dense = Linear(filters, sizes.attention_dim, bias=False, gain="tanh")

    def forward(self, looked: Tensor) -> Tensor:
        """[batch, 2, symbols] to [batch, symbols, attention]."""
        return self.location_dense(self.location_conv.conv(looked).transpose(1, 2))


class Attention(nn.Module):
    """Location-sensitive attention (Chorowski et al., 2015)."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        width = sizes.attention_dim
        self.query_layer = Linear(sizes.attention_rnn_dim, width, bias=False, gain="tanh")
        self.memory_layer = Linear(sizes.encoder_embedding_dim, width, bias=False, gain="tanh")
        self.v = Linear(width, 1, bias=False)
        self.location_layer = LocationLayer(sizes)

    def forward(
        self, hidden: Tensor, memory: Tensor, processed: Tensor, looked: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the context, [batch, encoder width], and the attention weights, [batch, symbols]."""
        query = self.query_layer(hidden)[:, None]
        energies = self.v(torch.tanh(query + self.location_layer(looked) + processed)).squeeze(2)
        weights = F.softmax(energies.float().masked_fill(padding, -math.inf), 1)
        return torch.bmm(weights[:, None].to(memory.dtype), memory).squeeze(1), weights


@dataclass(kw_only=True)
class DecoderState:
    """The state that one step of the decoder passes to the next."""

    hidden: Tensor
    cell: Tensor
    decoder_hidden: Tensor
    decoder_cell: Tensor
    context: Tensor
    weights: Tensor
    weights_sum: Tensor


class Decoder(nn.Module):
    """Two LSTM cells and the attention, one frame at a time."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        self.sizes = sizes
        memory, hidden = sizes.encoder_embedding_dim, sizes.attention_rnn_dim
        self.prenet = Prenet(sizes)
        self.attention_rnn = nn.LSTMCell(sizes.prenet_dim + memory, hidden)
        self.attention_layer = Attention(sizes)
        self.decoder_rnn = nn.LSTMCell(hidden + memory, sizes.decoder_rnn_dim)
        self.linear_projection = Linear(sizes.decoder_rnn_dim + memory, sizes.n_mel_channels)
        self.gate_layer = Linear(sizes.decoder_rnn_dim + memory, 1, gain="sigmoid")

    def begin(self, memory: Tensor) -> DecoderState:
        """Everything is zero before the first frame."""
        batch, symbols, width = memory.shape
        zeros = memory.new_zeros
        return DecoderState(
            hidden=zeros(batch, self.sizes.attention_rnn_dim),
            cell=zeros(batch, self.sizes.attention_rnn_dim),
            decoder_hidden=zeros(batch, self.sizes.decoder_rnn_dim),
            decoder_cell=zeros(batch, self.sizes.decoder_rnn_dim),
            context=zeros(batch, width),
            weights=zeros(batch, symbols, dtype=torch.float32),
            weights_sum=zeros(batch, symbols, dtype=torch.float32),
        )

    def step(
        self, frame: Tensor, state: DecoderState, memory: Tensor, processed: Tensor, padding: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Advance by one frame: return the next frame and the gate, and update the state."""
        sizes, training = self.sizes, self.training
        hidden, state.cell = self.attention_rnn(torch.cat((frame, state.context), 1), (state.hidden, state.cell))
        # The LSTM's next step also uses the hidden state after dropout: NVIDIA's choice instead of zoneout.
        state.hidden = F.dropout(hidden, sizes.p_attention_dropout, training)
        looked = torch.stack((state.weights, state.weights_sum), 1)
        state.context, state.weights = self.attention_layer(state.hidden, memory, processed, looked, padding)
        state.weights_sum = state.weights_sum + state.weights
        decoder_input = torch.cat((state.hidden, state.context), 1)
        hidden, state.decoder_cell = self.decoder_rnn(decoder_input, (state.decoder_hidden, state.decoder_cell))
        state.decoder_hidden = F.dropout(hidden, sizes.p_decoder_dropout, training)
        seen = torch.cat((state.decoder_hidden, state.context), 1)
        return self.linear_projection(seen), self.gate_layer(seen).squeeze(1)

    def forward(self, memory: Tensor, lengths: Tensor, mels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return frames [batch, frames, channels], gates [batch, frames] and alignments for known `mels`."""
        processed, padding = self.attention_layer.memory_layer(memory), padding_mask(memory, lengths)
        state, frames, gates, alignments = self.begin(memory), [], [], []
        for frame in self.prenet(shifted(mels)):
            mel, gate = self.step(frame, state, memory, processed, padding)
            frames.append(mel)
            gates.append(gate)
            alignments.append(state.weights)
        return torch.stack(frames, 1), torch.stack(gates, 1), torch.stack(alignments, 1)

    def infer(
        self, memory: Tensor, lengths: Tensor, *, threshold: float, most: int, early: bool = True
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The same on its own frames, with the number of frames of each clip; at most `most` frames."""
        processed, padding = self.attention_layer.memory_layer(memory), padding_mask(memory, lengths)
        state, frames, gates, alignments = self.begin(memory), [], [], []
        mel = memory.new_zeros(memory.shape[0], self.sizes.n_mel_channels)
        ends = torch.full((memory.shape[0],), most, device=memory.device)
        for step in range(1, most + 1):
            mel, gate = self.step(self.prenet(mel), state, memory, processed, padding)
            frames.append(mel)
            gates.append(gate)
            alignments.append(state.weights)
            ends = torch.where((gate.sigmoid() > threshold) & (ends == most), step, ends)
            if early and bool((ends < most).all()):
                break
        ends = ends.clamp(max=len(frames))
        return torch.stack(frames, 1), torch.stack(gates, 1), torch.stack(alignments, 1), ends


class Postnet(nn.Module):
    """Five convolutions that refine the frames using their context."""

    def __init__(self, sizes: ModelSizes) -> None:
        super().__init__()
        count, width, mels = sizes.postnet_n_convolutions, sizes.postnet_embedding_dim, sizes.n_mel_channels
        widths = [mels, *[width] * (count - 1), mels]
        gains = [*["tanh"] * (count - 1), "linear"]
        self.convolutions = nn.ModuleList(
            stage(widths[i], widths[i + 1], sizes.postnet_kernel_size, gains[i]) for i in range(count)
        )
        self.dropout = 0.5

    def forward(self, x: Tensor) -> Tensor:
        """[batch, channels, frames]."""
        *first, last = self.convolutions
        x = as_image(x)
        for convolution in first:
            x = F.dropout(torch.tanh(convolution(x)), self.dropout, self.training)
        return F.dropout(last(x), self.dropout, self.training).squeeze(2)


DecoderLoop = Callable[[Decoder, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


class Tacotron2(nn.Module):
    """Text to mel spectrograms."""

    def __init__(self, sizes: ModelSizes | None = None, *, uniform_bn: bool = True) -> None:
        super().__init__()
        self.sizes = sizes or ModelSizes()
        self.embedding = nn.Embedding(self.sizes.n_symbols, self.sizes.symbols_embedding_dim)
        bound = math.sqrt(3) * math.sqrt(2 / (self.sizes.n_symbols + self.sizes.symbols_embedding_dim))
        nn.init.uniform_(self.embedding.weight, -bound, bound)
        self.encoder, self.decoder, self.postnet = Encoder(self.sizes), Decoder(self.sizes), Postnet(self.sizes)
        if uniform_bn:  # the default of NVIDIA's training
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d):
                    nn.init.uniform_(module.weight)
        self.decoder_loop: DecoderLoop = Decoder.forward
        """The decoder loop in training: `Decoder.forward`, or the equivalent fast one."""

    def forward(self, text: Tensor, text_lengths: Tensor, mels: Tensor, mel_lengths: Tensor | None = None) -> Outputs:
        """Predict every frame of `mels` from the previous ones; with `mel_lengths`, frames after a clip are masked."""
        memory = self.encoder(self.embedding(text).transpose(1, 2), text_lengths)
        frames, gates, alignments = self.decoder_loop(self.decoder, memory, text_lengths, mels)
        before = frames.transpose(1, 2)
        after = before + self.postnet(before)
        if mel_lengths is not None:
            outside = torch.arange(before.shape[2], device=before.device) >= mel_lengths[:, None]
            before, after = (x.masked_fill(outside[:, None], 0.0) for x in (before, after))
            gates = gates.masked_fill(outside, 1e3)  # NVIDIA's value for a certain end
        return Outputs(mels=before, refined=after, gates=gates, alignments=alignments)

    @torch.no_grad()
    def infer(
        self, text: Tensor, text_lengths: Tensor, *, threshold: float = 0.5, most: int = 2000, early: bool = True
    ) -> tuple[Outputs, Tensor]:
        """Inference: return the outputs and the number of frames of each text."""
        memory = self.encoder(self.embedding(text).transpose(1, 2), text_lengths)
        frames, gates, alignments, ends = self.decoder.infer(
            memory, text_lengths, threshold=threshold, most=most, early=early
        )
        before = frames.transpose(1, 2)
        after = before + self.postnet(before)
        return Outputs(mels=before, refined=after, gates=gates, alignments=alignments), ends


def shifted(mels: Tensor) -> Tensor:
    """[batch, channels, frames] to [frames, batch, channels], shifted by one frame for teacher forcing."""
    return F.pad(mels[:, :, :-1], (1, 0)).permute(2, 0, 1)


def padding_mask(memory: Tensor, lengths: Tensor) -> Tensor:
    """True in the padding of each text: [batch, symbols]."""
    return torch.arange(memory.shape[1], device=memory.device) >= lengths[:, None]


def count_parameters(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(cast("Tensor", parameter).numel() for parameter in model.parameters())
