"""Define language models, which map tokens (B, T) to logits (B, T, C) of the token after each position."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError, unknown
from gradleak.losses import PADDING

KINDS = ("lstm", "gru", "transformer")


class RecurrentLanguageModel(nn.Module):
    """An embedding, LSTM or GRU layers, and a Linear layer, which shares the embedding's weight if `tied`."""

    def __init__(self, kind: str, pieces: int, width: int, layers: int, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(pieces, width)
        recurrent = nn.LSTM if kind == "lstm" else nn.GRU
        self.recurrent = recurrent(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, pieces)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, C) of the token after each of `tokens` (B, T)."""
        logits: Tensor = self.head(self.recurrent(self.embedding(tokens))[0])
        return logits


class CausalAttention(nn.Module):
    """Attention with several heads, from every position to itself and to earlier positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.heads = heads

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the attention's output at each position (B, T, E)."""
        query, key, value = (
            layer(inputs).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        gathered = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = self.out(gathered.transpose(1, 2).flatten(2))
        return mixed


class Block(nn.Module):
    """A transformer's layer, with normalisation before the attention and before the Linear layers (radford2019)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_wide = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the layer's outputs (B, T, E)."""
        inputs = inputs + self.attention(self.before_attention(inputs))
        outputs: Tensor = inputs + self.narrow(F.gelu(self.wide(self.before_wide(inputs))))
        return outputs


class TransformerLanguageModel(nn.Module):
    """A transformer like GPT-2: embeddings of tokens and positions, causal layers, a normalisation, a Linear layer."""

    def __init__(self, pieces: int, width: int, layers: int, tied: bool, heads: int = 4, longest: int = 64) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(pieces, width), nn.Embedding(longest, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, pieces, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits (B, T, C) of the token after each of `tokens` (B, T)."""
        if tokens.shape[-1] > self.places.num_embeddings:
            raise InputError(f"the model accepts at most {self.places.num_embeddings} tokens; got {tokens.shape[-1]}")
        places = self.places(torch.arange(tokens.shape[-1], device=tokens.device))
        logits: Tensor = self.head(self.norm(self.blocks(self.embedding(tokens) + places)))
        return logits


def build_language_model(
    kind: str, *, pieces: int, width: int = 256, layers: int = 1, tied: bool = False, seed: int = 0
) -> nn.Module:
    """Return a language model in eval mode with torch's initialisation; its last Linear layer is named `head`.

    Args:
        kind: "lstm", "gru" or "transformer".
        pieces: The number of tokens in the vocabulary.
        width: The width of embedding and state.
        layers: The number of layers.
        tied: Whether the last layer shares the embedding's weight.
        seed: The seed of the initialisation.
    """
    if kind not in KINDS:
        raise unknown("language model", kind, KINDS)
    if pieces < 2 or width < 4 or width % 4 or layers < 1:
        raise InputError(
            "a language model needs at least 2 pieces, a width that is a multiple of 4, and a layer; "
            f"got {pieces}, {width} and {layers}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if kind == "transformer":
            return TransformerLanguageModel(pieces, width, layers, tied).eval()
        return RecurrentLanguageModel(kind, pieces, width, layers, tied).eval()


@checked_arguments()
def batch_of(
    sentences: Sequence[Sequence[int]],
    start: int | None = 1,
    end: int | None = 2,
    *,
    device: torch.device | str = "cpu",
) -> tuple[Tensor, Tensor]:
    """Return the tokens and targets (B, T) on which a language model is trained.

    Args:
        sentences: The tokens of each sentence, without marks.
        start: The token before a sentence; None for none, so that the first word is not a target.
        end: The token after a sentence; None for none, so that the last word is only a target.
        device: The device of the results.

    Examples:
        >>> tokens, targets = batch_of([[7, 8, 9], [7, 12]])
        >>> tokens.tolist()
        [[1, 7, 8, 9], [1, 7, 12, 2]]
        >>> targets.tolist()
        [[7, 8, 9, 2], [7, 12, 2, -100]]
        >>> batch_of([[7, 8, 9]], start=None, end=None)
        (tensor([[7, 8]]), tensor([[8, 9]]))
    """
    try:
        device = torch.device(device)
    except RuntimeError as error:
        raise InputError(f"there is no kind of device named '{device}'") from error
    before, after = ([] if mark is None else [mark] for mark in (start, end))
    whole = [[*before, *sentence, *after] for sentence in sentences]
    longest = max(map(len, whole), default=2) - 1
    if longest < 1:
        raise InputError("a sentence without marks needs at least two words")
    tokens = torch.full((len(sentences), longest), end or 0)
    targets = torch.full((len(sentences), longest), PADDING)
    for row, sentence in enumerate(whole):
        tokens[row, : len(sentence)] = torch.tensor(sentence)[:longest]
        targets[row, : len(sentence) - 1] = torch.tensor(sentence[1:])
    return tokens.to(device), targets.to(device)
