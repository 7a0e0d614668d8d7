"""GPT-2: learned positions, layer norms before attention and MLP, and one matrix for both ends; nanoGPT's, faster."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from .cross_entropy import linear_cross_entropy


@dataclass(frozen=True, kw_only=True)
class Config:
    """The shape of a model, and how it computes."""

    vocabulary: int = 50304  # GPT-2's 50257, rounded up to a multiple of 64, as tensor cores prefer
    context: int = 1024
    layers: int = 12
    heads: int = 12
    width: int = 768
    recompute: bool = False  # blocks keep no activations for the backward pass, but compute them again
    precision: torch.dtype = torch.float32  # of activations and products; parameters, gradients and sums are in float32


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._heads = config.heads
        self.c_attn = nn.Linear(config.width, 3 * config.width, bias=False)
        self.c_proj = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Let each token attend to those before it."""
        batch, length, width = x.shape
        # Three views of one product, [batch, heads, length, width of a head], which no kernel copies.
        q, k, v = self.c_attn(x).view(batch, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4).unbind()
        y = scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).reshape(batch, length, width))


class MLP(nn.Module):
    """Transforms each token by itself."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.width, 4 * config.width, bias=False)
        self.c_proj = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply GPT-2's GELU between two products; its tanh as a sigmoid is the same function in a faster kernel."""
        x = self.c_fc(x)
        exact = x.float()
        return self.c_proj((exact * torch.sigmoid(1.5957691216 * (exact + 0.044715 * exact**3))).to(x.dtype))


class Block(nn.Module):
    """One layer of the transformer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._recompute = config.recompute
        self.ln_1 = nn.LayerNorm(config.width, bias=False)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.width, bias=False)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens and an update that the next block adds to them: in its own kernel, if compiled."""
        if self._recompute and torch.is_grad_enabled():
            return checkpoint(self._forward, x, update, use_reentrant=False)  # pyright: ignore[reportReturnType]
        return self._forward(x, update)

    def _forward(self, x: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        x = x + update
        x = x + self.attn(self.ln_1(x))
        return x, self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """The whole model."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.h = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.ln_f = nn.LayerNorm(config.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:  # as GPT-2 begins
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers if "c_proj" in name else 1))

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        """Return the mean loss or, without targets, the scores of the token that follows each sequence."""
        precision = self.config.precision
        with torch.autocast(tokens.device.type, precision, enabled=precision != torch.float32):
            x, update = self.embed(tokens)
            for block in self.h:
                x, update = block(x, update)
            x = self.normalize(x, update)
        if targets is None:
            return linear(x[:, -1], self.wte.weight.to(precision)).float()
        return linear_cross_entropy(x.flatten(0, 1), self.wte.weight, targets.flatten())

    def embed(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The embeddings of tokens, and of their positions."""
        return self.wte(tokens).to(self.config.precision), self.wpe.weight[: tokens.shape[1]].to(self.config.precision)

    def normalize(self, x: Tensor, update: Tensor) -> Tensor:
        """The last layer norm."""
        return self.ln_f(x + update).to(self.config.precision)

    @property
    def flops_per_token(self) -> int:
        """Operations of a training step per token, as nanoGPT counts them: 6 per parameter, and attention in full."""
        parameters = sum(each.numel() for each in self.parameters()) - self.wpe.weight.numel()
        return 6 * parameters + 12 * self.config.layers * self.config.width * self.config.context
