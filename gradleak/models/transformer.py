"""Define a small vision transformer, with learned, frozen or sinusoidal positions."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from gradleak.errors import unknown

Positions = Literal["learned", "frozen", "sinusoidal"]


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm of tokens (B, T, D), with statistics over samples and tokens."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the normalised tokens."""
        return super().forward(input.transpose(1, 2)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Attention with separate Linear layers for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended tokens (B, T, D)."""
        parts = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed: Tensor = self.out(nn.functional.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """A block with a norm before the attention and another before the MLP."""

    def __init__(self, width: int, heads: int, hidden: int, norm: type[nn.Module], activation: type[nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = norm(width), norm(width)
        self.attention = SelfAttention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after the block."""
        x = x + self.attention(self.attention_norm(x))
        after: Tensor = x + self.mlp(self.mlp_norm(x))
        return after


class VisionTransformer(nn.Module):
    """A vision transformer for square colour images.

    Args:
        size: The images' side.
        patch: The patches' side.
        width: The width D of the tokens.
        heads: The number of attention heads.
        depth: The number of blocks.
        classes: The number of classes.
        positions: "learned", "frozen" (random, without a gradient) or "sinusoidal" (computed in the forward pass).
        trained_form: Whether it has the form of the trained networks for CIFAR-10: batch norm, ReLU, and the mean over
            all tokens. Otherwise it has layer norm and GELU, and the class token is read.
    """

    def __init__(
        self,
        size: int = 32,
        patch: int = 8,
        width: int = 64,
        heads: int = 4,
        depth: int = 2,
        classes: int = 10,
        *,
        positions: Positions = "learned",
        trained_form: bool = False,
    ) -> None:
        super().__init__()
        count = (size // patch) ** 2 + 1
        norm, activation = (TokenBatchNorm, nn.ReLU) if trained_form else (nn.LayerNorm, nn.GELU)
        self.mean = trained_form
        self.embedding = nn.Conv2d(3, width, patch, stride=patch)
        self.class_token = nn.Parameter(0.02 * torch.randn(width))
        self.positions: Tensor | None = None
        if positions not in ("learned", "frozen", "sinusoidal"):
            raise unknown("kind of positions", positions, ("learned", "frozen", "sinusoidal"))
        if positions != "sinusoidal":
            self.positions = nn.Parameter(0.02 * torch.randn(count, width), requires_grad=positions == "learned")
        hidden = 2 * width if trained_form else 4 * width
        self.blocks = nn.Sequential(*(Block(width, heads, hidden, norm, activation) for _ in range(depth)))
        self.norm, self.head = norm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits (B, C) of images (B, 3, H, W)."""
        tokens = self.embedding(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), 1, -1), tokens], dim=1)
        tokens = tokens + (_sinusoids(tokens) if self.positions is None else self.positions)
        tokens = self.norm(self.blocks(tokens))
        logits: Tensor = self.head(tokens.mean(dim=1) if self.mean else tokens[:, 0])
        return logits


def _sinusoids(tokens: Tensor) -> Tensor:
    """Return fixed positions (T, D) of sines and cosines."""
    count, width = tokens.shape[1:]
    rates = torch.exp(-math.log(10_000) * torch.arange(0, width, 2) / width)
    angles = (torch.arange(count)[:, None] * rates).to(tokens)
    return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width]
