"""Find the words and the prefixes that the gradients of a transformer's affine layers allow (petrov2024).

The gradient of an affine layer is Σ_t δ_t [x_t; 1]ᵀ, so its input at every position lies in its row span. In the first
layer x_t depends only on the word and its position, so the words of each position are found independently. In later
layers of a causal model x_t depends on the whole prefix, which shows the words that belong together.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import reporting
from gradleak.answers import Answer, ReadingStatus
from gradleak.arguments import checked_arguments
from gradleak.calling import copy_of
from gradleak.cases import DOUBLE, Attack, Case
from gradleak.errors import InputError
from gradleak.leak import Leak, evaluating, hooked, is_causal, running
from gradleak.sequences.span import Span, full, span_of
from gradleak.sequences.tree import Tree

# Tokens and prefixes that run through the model at once, and positions that are examined at once if it is unknown how
# many there are.
TOKENS, PREFIXES, PLACES = 8192, 256, 8
# Layers whose spans are used. More of them exclude few more prefixes, and a prefix runs only up to the last of them.
SITES = 6
# Share of a model's matrices below which those that are sent are adapters.
ADAPTERS = 0.1
# Largest relative error of a layer's output that is computed from its input, weight and bias.
AFFINE = 1e-5


@dataclass(frozen=True)
class Site:
    """Affine layers with the same input.

    Attributes:
        layer: The first of them.
        name: Its name.
        width: The number D of its inputs.
        weights: The name of each layer's weight, and whether it is (D, R) instead of (R, D).
        biases: The names of their biases; empty if some have none.
    """

    layer: nn.Module
    name: str
    width: int
    weights: tuple[tuple[str, bool], ...]
    biases: tuple[str, ...]

    def gradient(self, leak: Leak) -> Tensor:
        """Return the gradient (R, D [+ 1]) whose rows are sums of the layers' inputs."""
        weights = [(leak.gradient(name), flipped) for name, flipped in self.weights]
        rows = torch.cat([weight.T if flipped else weight for weight, flipped in weights])
        if not self.biases:
            return rows
        return torch.cat([rows, torch.cat([leak.gradient(name) for name in self.biases])[:, None]], dim=1)


@dataclass(frozen=True)
class Network:
    """A transformer in float64.

    Attributes:
        model: The model.
        head: Its last layer.
        sites: The first affine layers before it, in the order of execution.
        placed: Whether the input of the first of them depends on the position.
        longest: The largest number of positions, None if unknown.
        plain: The model in float32, with which most words are excluded faster; None if it is in float64.
    """

    model: nn.Module
    head: nn.Linear
    sites: tuple[Site, ...]
    placed: bool
    longest: int | None = None
    plain: nn.Module | None = None


class _Enough(Exception):
    """Stops the forward pass at the last layer whose input is recorded."""


def _inputs(
    model: nn.Module, tokens: Tensor, layers: Sequence[nn.Module], *, stop: bool = True
) -> dict[nn.Module, Tensor]:
    """Return the inputs of layers for tokens (N, T); with `stop`, the forward pass ends at the last of them."""
    seen: dict[nn.Module, Tensor] = {}

    def look(module: nn.Module, args: tuple[Tensor, ...], named: dict[str, Tensor]) -> None:
        seen[module] = args[0] if args else next(iter(named.values()))
        if stop and module is layers[-1]:
            raise _Enough

    hooks = (layer.register_forward_pre_hook(look, with_kwargs=True) for layer in layers)
    with hooked(hooks), torch.no_grad(), contextlib.suppress(_Enough):
        model(tokens)
    return seen


def _affine(model: nn.Module, tokens: Tensor) -> dict[nn.Module, tuple[str, str, bool]]:
    """Return the modules that compute x Wᵀ + b, or x W + b, in the order in which they run on tokens (N, T).

    Each has the names of its weight and its bias ("" for none), and whether the weight is transposed. For torch's
    attention these are the parameters of queries, keys and values.
    """
    found: dict[nn.Module, tuple[str, str, bool]] = {}

    def look(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        weight, bias = module._parameters["weight"], module._parameters.get("bias")
        if not args or not args[0].is_floating_point() or weight is None:
            return
        for flipped in (False, True):
            matrix = weight.T if flipped else weight
            if matrix.shape == (output.shape[-1], args[0].shape[-1]):
                expected = F.linear(args[0], matrix, bias)
                if float((output - expected).norm()) <= AFFINE * float(expected.norm()):
                    found[module] = ("weight", "" if bias is None else "bias", flipped)
                    return

    def attend(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if len(args) > 2 and args[0] is args[1] is args[2] and module.in_proj_weight is not None:
            found[module] = ("in_proj_weight", "" if module.in_proj_bias is None else "in_proj_bias", False)

    hooks = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            hooks.append(module.register_forward_pre_hook(attend))
        elif (
            set(module._parameters) <= {"weight", "bias"} and getattr(module._parameters.get("weight"), "ndim", 0) == 2
        ):
            hooks.append(module.register_forward_hook(look))
    with hooked(hooks), torch.no_grad():
        model(tokens)
    return found


def network(model: nn.Module, head: str, words: int, *, causal: bool = True, longest: int | None = None) -> Network:
    """Return the affine layers of a transformer.

    Args:
        model: The model.
        head: The name of its last layer.
        words: The number of tokens that it knows.
        causal: Whether to refuse a model whose output depends on later tokens.
        longest: The largest number of positions.

    Raises:
        InputError: The model is not causal, or its first layer mixes positions.
    """
    copied = copy_of(model).double().eval()
    last = copied.get_submodule(head)
    assert isinstance(last, nn.Linear)
    generator = torch.Generator().manual_seed(0)
    places = min(4, longest or 4)
    tokens = torch.randint(words, (1, places), generator=generator).to(last.weight.device)
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % words
    affine = _affine(copied, tokens)
    layers = [module for module in affine if module is not last]
    if not layers:
        raise InputError(f"{type(model).__name__} has no Linear layer before its last one, '{head}'")
    seen, other = (_inputs(copied, some, [*layers, last], stop=False) for some in (tokens, changed))
    if causal and not is_causal(copied, tokens, head):
        raise InputError(f"{type(model).__name__} is not causal: its output at a position depends on later tokens")
    first = layers[0]
    shape = seen[first].shape
    if shape[:2] != tokens.shape or not torch.equal(seen[first][:, :-1], other[first][:, :-1]):
        raise _mixing(copied, first)
    same = tokens[:, :1].expand_as(tokens)
    alike = _inputs(copied, same, [first])[first]
    mixed = tokens.clone()
    mixed[0, 0] = (mixed[0, 0] + 1) % words
    if not torch.equal(_inputs(copied, mixed, [first])[first][:, 1:], seen[first][:, 1:]):
        raise _mixing(copied, first)
    groups: list[list[nn.Module]] = []
    for layer in layers:
        group = next((group for group in groups if seen[group[0]] is seen[layer]), None)
        if group is None:
            groups.append([layer])
        else:
            group.append(layer)
    names = {module: f"{name}." if name else "" for name, module in copied.named_modules()}
    sites = []
    for group in groups:
        inputs = seen[group[0]]
        # Layers with wider inputs add no information, and their spans are expensive to compute.
        if inputs.shape[:2] == tokens.shape and inputs.shape[-1] <= shape[-1]:
            parts = [(names[layer], *affine[layer]) for layer in group]
            weights = tuple((name + weight, flipped) for name, weight, _, flipped in parts)
            biases = tuple(name + bias for name, _, bias, _ in parts if bias)
            name = names[group[0]].removesuffix(".")
            sites.append(Site(group[0], name, inputs.shape[-1], weights, biases if len(biases) == len(parts) else ()))
    placed = not torch.allclose(alike, alike[:, :1].expand_as(alike), rtol=1e-9, atol=0)
    single = all(parameter.dtype == torch.float32 for parameter in model.parameters())
    return Network(copied, last, tuple(sites[:SITES]), placed, longest, model if single else None)


def _mixing(model: nn.Module, layer: nn.Module) -> InputError:
    name = next(name for name, module in model.named_modules() if module is layer)
    return InputError(f"the first Linear layer '{name}' reads more than one word and its position")


def grow(own: Network, spans: Sequence[Span], words: Tensor, start: int | None, *, most: int) -> Tree | None:
    """Return all prefixes whose positions lie in all spans; None if there are too many.

    Args:
        own: The model.
        spans: The spans of each site's inputs, and of the last layer's.
        words: The tokens to try (K,).
        start: The token before every sentence, None if sentences may begin with any word.
        most: The most prefixes that are returned.
    """
    layer, fitting = own.sites[0].layer, _Fitting(own, spans[0], words)
    parents, chosen = [words.new_empty(0)], [words.new_empty(0)]
    if start is None:
        prefixes = fitting.at(0)[:, None]
        if len(prefixes) > spans[0].rank:
            return None
    else:
        prefixes = words.new_tensor([[start]])
        prefixes = prefixes[spans[0].inside(_inputs(own.model, prefixes, [layer])[layer][:, -1])]
    nodes, before = words.new_full((len(prefixes),), -1), 0
    while len(prefixes):
        fits = _later(own, spans[1:-1], prefixes)
        prefixes = prefixes[fits]
        parents.append(nodes[fits])
        chosen.append(prefixes[:, -1])
        after = before + len(prefixes)
        if after > most:
            return None
        place = prefixes.shape[1]
        following = fitting.at(place) if len(prefixes) else words[:0]
        if len(following) * len(prefixes) > 100 * most:
            return None
        nodes = torch.arange(before, after, device=words.device).repeat_interleave(len(following))
        longer = prefixes.repeat_interleave(len(following), dim=0)
        prefixes, before = torch.cat([longer, following.repeat(len(prefixes))[:, None]], dim=1), after
    tree = Tree(torch.cat(parents), torch.cat(chosen), own.head.weight.new_empty(0, own.head.in_features))
    tree = _featured(own, tree)
    # The last layer's gradient shows no prefix without a target; as many prefixes as a rank are all true.
    sure = len(tree) == max(span.rank for span in spans[:-1])
    return tree if sure else _within(tree, spans[-1])


def _later(own: Network, spans: Sequence[Span], prefixes: Tensor) -> Tensor:
    """Return which prefixes (N, T) lie in the later sites' spans at their last position.

    The first of these sites is checked first, so that few prefixes run through more of the model. A word that is
    repeated from the beginning has the same inputs as the word alone, if the model has no positions; it is left out.
    """
    layers = [site.layer for site in own.sites[1:]]
    fits = torch.zeros(len(prefixes), dtype=torch.bool, device=prefixes.device)
    parts = torch.arange(len(prefixes), device=prefixes.device).split(PREFIXES)
    for part in reporting.steps(parts, len(parts), f"prefixes of {prefixes.shape[1]} words"):
        chosen = part
        for stage in (layers[:1], layers[1:]):
            if not len(chosen) or not stage:
                continue
            seen = _inputs(own.model, prefixes[chosen], stage)
            inside = torch.ones(len(chosen), dtype=torch.bool, device=prefixes.device)
            for layer in stage:
                inside &= spans[layers.index(layer)].inside(seen[layer][:, -1])
            if prefixes.shape[1] > 1:
                step = seen[stage[0]][:, -2:]
                inside &= (step[:, 1] - step[:, 0]).norm(dim=1) > AFFINE * step[:, 1].norm(dim=1)
            chosen = chosen[inside]
        fits[chosen] = True
    return fits


def _featured(own: Network, tree: Tree) -> Tree:
    """Return a tree with the last layer's input after each prefix."""
    features = own.head.weight.new_zeros(len(tree), own.head.in_features)
    leaves = torch.ones(len(tree), dtype=torch.bool, device=tree.words.device)
    leaves[tree.parents[tree.parents >= 0]] = False
    paths = [tree.nodes(leaf) for leaf in leaves.nonzero()[:, 0].tolist()]
    for length in sorted({len(path) for path in paths}):
        for nodes in torch.tensor([path for path in paths if len(path) == length], device=tree.words.device).split(16):
            seen = _inputs(own.model, tree.words[nodes], [own.head])
            features[nodes] = seen[own.head]
    return Tree(tree.parents, tree.words, features)


def _within(tree: Tree, span: Span) -> Tree:
    """Return the prefixes of a tree that lie in the last layer's span with all that is before them."""
    kept = span.inside(tree.features).tolist()
    for node, parent in enumerate(tree.parents.tolist()):
        kept[node] = kept[node] and (parent < 0 or kept[parent])
    chosen = torch.tensor(kept, dtype=torch.bool, device=tree.words.device)
    place = chosen.cumsum(dim=0) - 1
    parents = tree.parents[chosen]
    return Tree(torch.where(parents < 0, parents, place[parents]), tree.words[chosen], tree.features[chosen])


class _Fitting:
    """The words that lie in the first site's span at each position, found for a few positions at a time."""

    def __init__(self, own: Network, span: Span, words: Tensor) -> None:
        self.own, self.span, self.words = own, span, words
        self.known: list[Tensor] = []

    def at(self, place: int) -> Tensor:
        """Return the words at a position; none behind the model's longest input."""
        if self.own.longest is not None and place >= self.own.longest:
            return self.words[:0]
        if not self.own.placed and self.known:
            return self.known[0]
        while place >= len(self.known):
            first = len(self.known)
            last = (self.own.longest or first + PLACES) if self.own.placed else 1
            fresh = self._fitting(first, last) or self._fitting(first, first + 1)
            if not fresh:
                return self.words[:0]
            self.known += fresh
        return self.known[place]

    def _fitting(self, first: int, last: int) -> list[Tensor]:
        """Return the words at the positions from `first` to before `last`; none if the model does not reach there."""
        near, fits = self.words, []
        try:
            if self.own.plain is not None:
                plain = [
                    part[self.span.near(fresh.flatten(0, 1)).view(len(part), -1).any(dim=1)]
                    for part, fresh in self._vectors(self.own.plain, near, first, last)
                ]
                near = torch.cat(plain)
            for _, fresh in self._vectors(self.own.model, near, first, last):
                fits.append(self.span.inside(fresh.flatten(0, 1)).unflatten(0, fresh.shape[:2]))
        except torch.OutOfMemoryError:
            raise
        except (InputError, IndexError, RuntimeError):
            return []
        inside = torch.cat(fits) if fits else torch.zeros(0, last - first, dtype=torch.bool, device=near.device)
        return [near[place] for place in inside.unbind(dim=1)]

    def _vectors(self, model: nn.Module, words: Tensor, first: int, last: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield words and the first site's inputs for them at the positions from `first` to before `last`."""
        layer = model.get_submodule(self.own.sites[0].name)
        chunks = words.split(max(1, TOKENS // last))
        with evaluating(model):
            for part in reporting.steps(chunks, len(chunks), f"words at positions {first + 1} to {last}"):
                yield part, _inputs(model, part[:, None].expand(-1, last), [layer])[layer][:, first:]


@dataclass(frozen=True)
class Bag:
    """The words of a batch.

    Attributes:
        tokens: The words that were read, sorted; without those that were only targets.
        places: The positions at which each of them fits. Some may be false: if a word was read at one position, and
            other words at this position and at another one, the word may fit there too.
        status: "ambiguous", because the span also holds other vectors, or "failed".
        reason: The reason for the status.
        rank: The rank of the first layer's gradient.
        text: The words in their order, if the batch is one text and a single word fits at each of its positions.
    """

    tokens: list[int]
    places: list[list[int]]
    status: ReadingStatus
    reason: str
    rank: int
    text: list[int] | None = None

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        sentences = None if self.text is None else [self.text]
        return (
            Answer(self.status, self.reason, tokens=set(self.tokens) if self.tokens else None, sentences=sentences),
        )


@checked_arguments()
def read_bag(leak: Leak, *, words: Sequence[int] | None = None) -> Bag:
    """Read the words of a batch from the first layer's gradient of any transformer, causal or not.

    Args:
        leak: The gradients of one step.
        words: The tokens to try; all by default.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.language import batch_of, build_language_model
        >>> model = build_language_model("transformer", pieces=50, width=32, tied=True)
        >>> read_bag(observe(model, *batch_of([[7, 8, 9], [7, 12]]))).tokens
        [1, 7, 8, 9, 12]
    """
    leak.check_one_step("reading words")
    longest = leak.input_shape[0] if leak.input_shape is not None and len(leak.input_shape) == 1 else None
    pieces = vocabulary_of(leak.model, longest or 1).num_embeddings
    own = network(leak.model, leak.head, pieces, causal=False, longest=longest)
    span = span_of(own.sites[0].gradient(leak))
    tried = torch.arange(pieces) if words is None else torch.tensor(words).unique()
    fitting = _Fitting(own, span, tried.to(leak.weight.device))
    fits: list[list[int]] = []
    for place in range(own.longest or 1):
        if span.power == 0 or len(words_fitting := fitting.at(place)) > span.rank:
            return Bag([], [], "failed", full(span), span.rank)
        fits.append(words_fitting.tolist())
    tokens = sorted({word for words_there in fits for word in words_there})
    if not tokens:
        return Bag([], [], "failed", "no word lies in the span of the first layer's gradient", span.rank)
    places = [[place for place, words_there in enumerate(fits) if word in words_there] for word in tokens]
    used = [place for place, words_there in enumerate(fits) if words_there]
    # Padding has no words, before or behind the text.
    whole = used == list(range(used[0], used[-1] + 1)) and all(len(fits[place]) == 1 for place in used)
    text = [fits[place][0] for place in used] if leak.batch_size == 1 and own.longest and whole else None
    order = "one at each position" if text else "not their order"
    reason = f"the words that lie in the span of the first layer's gradient, {order}"
    return Bag(tokens, places, "ambiguous", reason, span.rank, text)


def classifies(model: nn.Module, longest: int | None = None) -> bool:
    """Return whether a model gives one output for a text of `longest` tokens instead of one at every position."""
    tokens = torch.ones(1, longest or 1, dtype=torch.long, device=next(model.parameters()).device)
    with torch.no_grad(), running(model, tokens.shape):
        output = model(tokens)
    return torch.is_tensor(output) and output.ndim == 2


def vocabulary_of(model: nn.Module, places: int) -> nn.Embedding:
    """Return the embedding of a model that reads its tokens."""
    device = next(model.parameters()).device
    tokens = torch.ones(1, places, dtype=torch.long, device=device)
    read: list[nn.Embedding] = []

    def look(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if isinstance(module, nn.Embedding) and torch.equal(args[0], tokens):
            read.append(module)

    hooks = (module.register_forward_pre_hook(look) for module in model.modules() if isinstance(module, nn.Embedding))
    with hooked(hooks), torch.no_grad(), running(model, tokens.shape):
        model(tokens)
    if not read:
        raise InputError(f"{type(model).__name__} has no Embedding that reads its tokens")
    return read[0]


def unsent(leak: Leak) -> str:
    """Return why a transformer's words cannot be read, if only adapters are trained, "" if they may be."""
    weights = {name: value for name, value in leak.model.named_parameters() if value.ndim == 2}
    sent = sum(value.numel() for name, value in weights.items() if name in leak.gradients)
    if 0 < sent < ADAPTERS * sum(value.numel() for value in weights.values()):
        return "adapters only: the layers that they change are frozen"
    return ""


def memory(case: Case) -> int:
    """Return the bytes for a copy of a model in float64, its gradients, and the vectors of words that are tried."""
    return 3 * DOUBLE * case.subject.parameters + 8 * DOUBLE * TOKENS * case.subject.features


def _why_not(case: Case) -> str:
    if case.subject.kind != "tokens":
        return "the network reads no tokens"
    if any(isinstance(module, nn.RNNBase) for module in case.leak.model.modules()):
        return "the network is recurrent"
    return unsent(case.leak)


def _attack(case: Case) -> Answer:
    return read_bag(case.leak).answers[0]


ATTACK = Attack(
    "words in the span",
    page="sentences",
    finds=("words", "sentences"),
    needs="the gradients of the first layer of a transformer; a single text, for the order of its words",
    refused=_why_not,
    run=_attack,
    remedy="noise; more tokens in a batch than the layers are wide",
    memory=memory,
)
