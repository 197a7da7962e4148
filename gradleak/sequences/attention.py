"""Find the prefixes that the gradients of a causal model's Linear layers allow, as in transformers (petrov2024).

The gradient of a Linear layer is Σ_t δ_t [x_t; 1]ᵀ, so its input at every position lies in its row span. In the first
layer x_t depends only on the word and its position, so the words of each position are found independently. In later
layers x_t depends on the whole prefix, which shows the words that belong together.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.sequences.span import Span
from gradleak.sequences.tree import Tree

# Words and prefixes that run through the model at once, and positions that are examined at once.
WORDS, PREFIXES, PLACES = 1024, 256, 8


@dataclass(frozen=True)
class Group:
    """Linear layers with the same input: the first of them, their names, and whether all of them have a bias."""

    layer: nn.Linear
    names: tuple[str, ...]
    biased: bool

    def gradient(self, leak: Leak) -> Tensor:
        """Return the gradient (R, D [+ 1]) whose rows are sums of the layers' inputs."""
        weights = torch.cat([leak.gradient(f"{name}.weight") for name in self.names])
        if not self.biased:
            return weights
        biases = torch.cat([leak.gradient(f"{name}.bias") for name in self.names])
        return torch.cat([weights, biases[:, None]], dim=1)


@dataclass(frozen=True)
class Network:
    """A causal model in float64; its Linear layers are in the order of execution, grouped by their input."""

    model: nn.Module
    head: nn.Linear
    groups: tuple[Group, ...]


class _Enough(Exception):
    """Stops the forward pass at the last Linear layer whose input is recorded."""


def _inputs(
    model: nn.Module, tokens: Tensor, layers: Sequence[nn.Linear], *, stop: bool = True
) -> dict[nn.Linear, Tensor]:
    """Return the inputs of Linear layers for tokens (N, T); with `stop`, the forward pass ends at the last of them."""
    seen: dict[nn.Linear, Tensor] = {}

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, nn.Linear)
        seen[module] = args[0]
        if stop and module is layers[-1]:
            raise _Enough

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with torch.no_grad(), contextlib.suppress(_Enough):
            model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


def network(model: nn.Module, head: str, classes: int) -> Network:
    """Return the Linear layers of a model; refuse a model that is not causal, or whose first layer mixes positions."""
    copied = copy.deepcopy(model).double().eval()
    linears = {module: name for name, module in copied.named_modules() if isinstance(module, nn.Linear)}
    last = copied.get_submodule(head)
    assert isinstance(last, nn.Linear)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(classes, (1, 4), generator=generator).to(last.weight.device)
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % classes
    seen, seen_changed = (_inputs(copied, some, list(linears), stop=False) for some in (tokens, changed))
    if not torch.equal(seen[last][:, :2], seen_changed[last][:, :2]):
        raise InputError(f"{type(model).__name__} is not causal: its output at a position depends on later tokens")
    groups: list[list[nn.Linear]] = []
    for layer in [layer for layer in seen if layer is not last]:
        same = next((group for group in groups if seen[group[0]] is seen[layer]), None)
        if same is None:
            groups.append([layer])
        else:
            same.append(layer)
    if not groups:
        raise InputError(f"{type(model).__name__} has no Linear layer before its last one, '{head}'")
    first = groups[0][0]
    if not torch.equal(seen[first][:, 3], seen_changed[first][:, 3]):
        raise InputError(f"the first Linear layer '{linears[first]}' reads more than one word and its position")
    # Layers with wider inputs add no information, and their spans are expensive to compute.
    groups = [group for group in groups if group[0].in_features <= first.in_features]
    named = [
        Group(group[0], tuple(linears[layer] for layer in group), all(layer.bias is not None for layer in group))
        for group in groups
    ]
    return Network(copied, last, tuple(named))


def grow(own: Network, spans: Sequence[Span], words: Tensor, start: int, *, most: int) -> Tree | None:
    """Return all prefixes whose positions lie in all spans; None if there are too many.

    Args:
        own: The model.
        spans: The spans of each group's inputs, and of the last layer's.
        words: The tokens to try (K,).
        start: The token before every sentence.
        most: The most prefixes that are returned.
    """
    layer = own.groups[0].layer
    fitting: list[Tensor] = []
    tree = Tree(words.new_empty(0), words.new_empty(0), own.head.weight.new_empty(0, own.head.in_features))
    prefixes, nodes = words.new_tensor([[start]]), words.new_tensor([-1])
    while len(prefixes):
        fits, features = _later(own, spans[1:], prefixes)
        if prefixes.shape[1] == 1:
            fits &= spans[0].inside(_inputs(own.model, prefixes, [layer])[layer][:, -1])
        before = len(tree)
        tree = tree.extended(nodes[fits], prefixes[fits, -1], features[fits])
        prefixes = prefixes[fits]
        if len(tree) > most:
            return None
        place, known = prefixes.shape[1], len(fitting)
        if len(prefixes) and place >= known:
            lasts = (place + PLACES, place + 1)
            fitting += next(filter(None, (_fitting(own, spans[0], words, known, last) for last in lasts)), [])
        following = fitting[place] if place < len(fitting) else words[:0]
        if len(following) * len(prefixes) > 100 * most:
            return None
        nodes = torch.arange(before, len(tree), device=words.device).repeat_interleave(len(following))
        longer = prefixes.repeat_interleave(len(following), dim=0)
        prefixes = torch.cat([longer, following.repeat(len(prefixes))[:, None]], dim=1)
    return tree


def _later(own: Network, spans: Sequence[Span], prefixes: Tensor) -> tuple[Tensor, Tensor]:
    """Return which prefixes (N, T) lie in the later layers' spans at their last position, and their features (N, I).

    The first of these layers is checked first, so that few prefixes run through the whole model.
    """
    layers = [group.layer for group in own.groups[1:]] + [own.head]
    fits = torch.zeros(len(prefixes), dtype=torch.bool, device=prefixes.device)
    features = own.head.weight.new_zeros(len(prefixes), own.head.in_features)
    for chosen in torch.arange(len(prefixes), device=prefixes.device).split(PREFIXES):
        for stage in (layers[:1], layers[1:]):
            if not len(chosen) or not stage:
                continue
            seen = _inputs(own.model, prefixes[chosen], stage)
            inside = torch.ones(len(chosen), dtype=torch.bool, device=prefixes.device)
            for layer in stage:
                inside &= spans[layers.index(layer)].inside(seen[layer][:, -1])
            chosen = chosen[inside]
            if stage[-1] is own.head:
                fits[chosen] = True
                features[chosen] = seen[own.head][inside, -1]
    return fits, features


def _fitting(own: Network, span: Span, words: Tensor, first: int, last: int) -> list[Tensor]:
    """Return the words that lie in the first layer's span at the positions from `first` to before `last`.

    The list is empty if the last of these positions is beyond the model's longest input.
    """
    layer = own.groups[0].layer
    parts = []
    for part in words.split(WORDS):
        try:
            seen = _inputs(own.model, part[:, None].expand(-1, last), [layer])
        except torch.OutOfMemoryError:
            raise
        except (InputError, IndexError, RuntimeError):
            return []
        fresh = seen[layer][:, first:]
        parts.append(span.inside(fresh.flatten(0, 1)).unflatten(0, fresh.shape[:2]))
    return [words[fits] for fits in torch.cat(parts).unbind(dim=1)]
