"""Find the prefixes that the gradients of LSTM and GRU layers allow.

The gradient of [W_ih, W_hh, b] is Σ_t δ_t [e(w_t); h_t; 1]ᵀ, so the input of every step lies in its row span. The state
before the first word is known, so this gives the words that fit there, then the states after them, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.sequences.span import Span
from gradleak.sequences.tree import Tree

# Pairs of a prefix and a word that are tried at once; the most pairs near the span, beyond which noise hides the true
# pairs; and the pairs that are then checked at once.
PAIRS, NEAR, LOOKED = 4_000_000, 100_000, 4096
# Words whose products are computed at a time, and the largest relative error of squares in single precision.
WORDS, ROUGH = 1024, 1e-5


@dataclass(frozen=True)
class Layer:
    """A recurrent layer.

    Attributes:
        kind: nn.LSTM or nn.GRU.
        names: The names of the layer's weights, and of its biases if there are any.
        weights: The weights for inputs and states, and the biases of both, zero if it has none.
    """

    kind: type[nn.RNNBase]
    names: list[str]
    weights: tuple[Tensor, ...]

    @property
    def width(self) -> int:
        """The size of its state."""
        return self.weights[1].shape[1]

    def start(self) -> tuple[Tensor, ...]:
        """Return the state before the first word, which is zero, and the cell of an LSTM."""
        zeros = self.weights[1].new_zeros(1, self.width)
        return (zeros, zeros) if self.kind is nn.LSTM else (zeros,)

    def step(self, inputs: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the states after inputs (N, E)."""
        if self.kind is nn.LSTM:
            return torch.lstm_cell(inputs, state, *self.weights)
        return (torch.gru_cell(inputs, state[0], *self.weights),)

    def gradient(self, leak: Leak) -> Tensor:
        """Return the gradient (R, E + H [+ 1]) whose rows are sums of [e; h; 1]; of a GRU, only its two gates' rows."""
        whole = leak.joined(self.names[:3])
        return whole if self.kind is nn.LSTM else whole[: 2 * self.width]

    def inputs(self, inputs: Tensor, state: Tensor) -> Tensor:
        """Return [e; h; 1] for inputs (N, E) and states (N, H)."""
        ones = [state.new_ones(len(state), 1)] if len(self.names) > 2 else []
        return torch.cat([inputs, state, *ones], dim=1)


def layers_of(name: str, module: nn.RNNBase) -> list[Layer]:
    """Return the layers of an LSTM or GRU called `name` in its model, in float64."""
    if module.bidirectional:
        raise InputError(f"'{name}' is bidirectional; only layers that read forwards are supported")
    if getattr(module, "proj_size", 0):
        raise InputError(f"'{name}' projects its state (proj_size), which is not supported")
    layers = []
    for index in range(module.num_layers):
        kinds = ["weight_ih", "weight_hh"] + ["bias_ih", "bias_hh"] * bool(module.bias)
        weights = [getattr(module, f"{kind}_l{index}").detach().double() for kind in kinds]
        weights += [weights[0].new_zeros(len(weights[0]))] * (4 - len(weights))
        layers.append(Layer(type(module), [f"{name}.{kind}_l{index}" for kind in kinds], tuple(weights)))
    return layers


def grow(
    layers: Sequence[Layer], embedding: Tensor, spans: Sequence[Span], words: Tensor, start: int, *, most: int
) -> Tree | None:
    """Return all prefixes whose every step lies in the spans of all layers; None if there are too many.

    Args:
        layers: The recurrent layers.
        embedding: (V, E).
        spans: The span of each layer's inputs, and of the last layer's.
        words: The tokens to try (K,).
        start: The token before every sentence.
        most: The most prefixes that are returned.
    """
    first = _Trial(layers[0], spans[0], embedding, words)
    states = [layer.start() for layer in layers]
    tree = Tree(words.new_empty(0), words.new_empty(0), layers[-1].weights[1].new_empty(0, layers[-1].width))
    parents, prefix_indices, chosen = words.new_tensor([-1]), words.new_tensor([0]), words.new_tensor([start])
    before = 0
    while True:
        inputs, fits = embedding[chosen].double(), torch.ones_like(chosen, dtype=torch.bool)
        stepped: list[tuple[Tensor, ...]] = []
        for index, (layer, state) in enumerate(zip(layers, states, strict=True)):
            followed = tuple(part[prefix_indices] for part in state)
            # After the first step, `first` has chosen only words that lie in the first layer's span.
            if index or before == 0:
                fits &= spans[index].inside(layer.inputs(inputs, followed[0]))
            stepped.append(layer.step(inputs, followed))
            inputs = stepped[-1][0]
        fits &= spans[-1].inside(inputs)
        tree = tree.extended(parents[fits], chosen[fits], inputs[fits])
        if len(tree) > most:
            return None
        if not fits.any():
            return tree
        states = [tuple(part[fits] for part in state) for state in stepped]
        fitting = first.fitting(states[0][0])
        if fitting is None or len(fitting[0]) > most:
            return None
        prefix_indices, word_indices = fitting
        parents, chosen = before + prefix_indices, words[word_indices]
        before = len(tree)


class _Trial:
    """The check of all words after all states at once, by products of the words' parts and the states' parts.

    The check uses single precision with a margin. Pairs near the span are checked again in double precision.
    """

    def __init__(self, layer: Layer, span: Span, embedding: Tensor, words: Tensor) -> None:
        self.layer, self.span, self.embedding, self.words = layer, span, embedding, words
        width = embedding.shape[1]
        # Only ratios of units matter. Division by the mean keeps them in the range of single precision.
        units = (span.units / span.units.mean()).float()
        basis = span.basis.float()
        self.units, self.basis = units[width:], basis[width:]
        parts = [embedding[chunk].float() / units[:width] for chunk in words.split(WORDS)]
        self.along = torch.cat([part @ basis[:width] for part in parts])
        self.lengths = torch.cat([part.square().sum(dim=1) for part in parts])
        # The squared misses of the words' parts alone. The products of both parts are subtracted later.
        self.missed = self.lengths - torch.cat([part.square().sum(dim=1) for part in self.along.split(WORDS)])

    def fitting(self, states: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return the pairs of a state (N, H) and a word that lie in the span, as two index tensors."""
        step = max(1, PAIRS // max(1, len(self.words)))
        owners, words = [], []
        for index, part in enumerate(states.split(step)):
            near = self._near(part)
            if len(near[0]) > NEAR:
                return None
            for state_indices, word_indices in zip(near[0].split(LOOKED), near[1].split(LOOKED), strict=True):
                inputs = self.embedding[self.words[word_indices]].double()
                fits = self.span.inside(self.layer.inputs(inputs, part[state_indices]))
                owners.append(state_indices[fits] + index * step)
                words.append(word_indices[fits])
        return torch.cat(owners), torch.cat(words)

    def _near(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs whose miss is at most the largest one that noise can explain."""
        scaled = self.layer.inputs(states[:, :0], states).float() / self.units
        along = scaled @ self.basis
        # The condition is |x|² − |Vᵀx|² < near · |x|² for x = [word; state; 1].
        own_length = scaled.square().sum(dim=1, keepdim=True)
        own_missed = own_length - along.square().sum(dim=1, keepdim=True)
        near = min(self.span.worst, 1.0) ** 2 + ROUGH
        beyond = torch.addmm(self.missed - near * self.lengths, along, self.along.T, alpha=-2)
        state_indices, word_indices = (beyond < near * own_length - own_missed).nonzero(as_tuple=True)
        return state_indices, word_indices
