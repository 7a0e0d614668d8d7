"""GPT-2: learned positions, causal attention, GELU, layer norms before each part, and one matrix for both ends.

The model is nanoGPT's, with its number of parameters, its names of layers and its initial weights.
"""

# torch is only partially typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, layer_norm, linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from .loss import linear_cross_entropy


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and how it computes."""

    vocabulary: int = 50304
    """Number of token ids, a multiple of 64, as tensor cores prefer; GPT-2's 50257 become 50304."""
    context: int = 1024
    """The longest sequence."""
    layers: int = 12
    heads: int = 12
    width: int = 768
    attention: str = "sdpa"
    """sdpa: torch's fused kernels; flex: FlexAttention, which also has a sliding window."""
    window: int = 0
    """How many tokens each one sees with flex, itself included; 0: all before it."""
    recompute: bool = False
    """Whether a block computes its activations again in the backward pass instead of keeping them."""
    precision: torch.dtype = torch.float32
    """Activations, and the weights while they are multiplied. Parameters, gradients and sums stay in float32."""


class Linear(nn.Module):
    """A matrix in float32 that is multiplied in the precision of its input."""

    def __init__(self, inputs: int, outputs: int, *, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * std)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply."""
        return linear(x, self.weight.to(x.dtype))


class Norm(nn.Module):
    """A layer norm without a bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalize; torch computes mean and variance in float32."""
        return layer_norm(x, self.weight.shape, self.weight.to(x.dtype))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._config = config
        self.c_attn = Linear(config.width, 3 * config.width, std=0.02)
        self.c_proj = Linear(config.width, config.width, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, x: Tensor) -> Tensor:
        """Let each token attend to those before it."""
        batch, length, width = x.shape
        # Views of one product, which no kernel copies: [batch, heads, length, width of a head].
        q, k, v = self.c_attn(x).view(batch, length, 3, self._config.heads, -1).permute(2, 0, 3, 1, 4).unbind()
        if self._config.attention == "flex":
            y = flex(q, k, v, window=self._config.window)
        else:
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """Four times as wide inside."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = Linear(config.width, 4 * config.width, std=0.02)
        self.c_proj = Linear(4 * config.width, config.width, std=0.02 / math.sqrt(2 * config.layers))

    def forward(self, x: Tensor) -> Tensor:
        """Transform each token by itself."""
        return self.c_proj(gelu(self.c_fc(x)))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._recompute = config.recompute
        self.ln_1 = Norm(config.width)
        self.attn = Attention(config)
        self.ln_2 = Norm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens and the update that the next block adds to them: in its kernel, if compiled."""
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self._forward, x, update, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return self._forward(x, update)

    def _forward(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        x = x + update
        x = x + self.attn(self.ln_1(x))
        return x, self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The whole model: from tokens to the loss, or to the scores of the next token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Parameter(torch.randn(config.vocabulary, config.width) * 0.02)
        """Embeddings of tokens; also the last layer."""
        self.wpe = nn.Parameter(torch.randn(config.context, config.width) * 0.02)
        """Embeddings of positions."""
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = Norm(config.width)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss, or without targets the scores of the token that follows each sequence."""
        precision = self.config.precision
        x, update = embedding(tokens, self.wte).to(precision), self.wpe[: tokens.shape[1]].to(precision)
        for block in self.h:
            x, update = block(x, update)
        x = self.ln_f(x + update)
        if targets is None:
            return linear(x[:, -1], self.wte.to(x.dtype)).float()
        return linear_cross_entropy(x.flatten(0, 1), self.wte, targets.flatten())

    @property
    def flops_per_token(self) -> int:
        """Operations of a training step per token, as nanoGPT counts them: 6 per parameter, and attention in full."""
        config = self.config
        parameters = sum(each.numel() for each in self.parameters()) - self.wpe.numel()
        return 6 * parameters + 12 * config.layers * config.width * config.context


def gelu(x: Tensor) -> Tensor:
    """GPT-2's GELU, whose tanh is written as a sigmoid: the same function, and a faster kernel."""
    exact = x.float()
    return (exact * torch.sigmoid(math.sqrt(8 / math.pi) * (exact + 0.044715 * exact**3))).to(x.dtype)


def flex(q: Tensor, k: Tensor, v: Tensor, *, window: int) -> Tensor:
    """Causal FlexAttention, within a sliding window if there is one."""
    from torch.nn.attention.flex_attention import flex_attention

    y: Any = flex_attention(q, k, v, block_mask=block_mask(q.shape[-2], window, q.device))
    return y


@cache
def block_mask(length: int, window: int, device: torch.device) -> Any:
    """Which tokens see which; whole blocks that nobody sees are skipped."""
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(_batch: Tensor, _head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (q - k < window) if window else q >= k

    return create_block_mask(sees, None, None, length, length, device=device)  # pyright: ignore[reportArgumentType]
