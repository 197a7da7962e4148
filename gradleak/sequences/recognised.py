"""Recognise language models whose sentences can be read, by their modules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.leak import Gradients, evaluating
from gradleak.sequences import attention, recurrent
from gradleak.sequences.span import Span, everything, span_of
from gradleak.sequences.tree import Tree

# Largest relative error between the model's logits and those computed from the recognised modules.
ALIKE = 1e-4


@dataclass(frozen=True)
class Grown:
    """The prefixes that were found.

    Attributes:
        tree: The prefixes; None if there are too many.
        rank: The rank of the first layer's gradient.
        reason: Why the search failed, "" if it did not.
    """

    tree: Tree | None
    rank: int
    reason: str = ""


@dataclass(frozen=True)
class Model:
    """A language model.

    Attributes:
        embedding: (V, E).
        features: The number of the last layer's inputs.
        embedding_name: The name of the embedding's weight in the leak.
        head_weight: The name of the last layer's weight in the leak.
        head_bias: The name of the last layer's bias, or None.
    """

    embedding: Tensor
    features: int
    embedding_name: str
    head_weight: str
    head_bias: str | None

    @property
    def tied(self) -> bool:
        """Whether the last layer's weight is the embedding."""
        return self.embedding_name == self.head_weight

    def head_span(self, gradients: Gradients, least: int, *, equalise: bool) -> Span:
        """Return the span of the last layer's inputs; the whole space if its gradients are not sent, or are tied."""
        gradient = gradients.get(self.head_weight)
        if self.tied or gradient is None or (self.head_bias is not None and self.head_bias not in gradients):
            return everything(self.embedding.new_empty(0, self.features))
        if self.head_bias is not None:
            gradient = torch.cat([gradient, gradients[self.head_bias][:, None]], dim=1)
        return span_of(gradient, equalise=equalise, least=least)

    def grow(self, gradients: Gradients, words: Tensor, start: int, *, equalise: bool, most: int) -> Grown:
        """Return the prefixes of `words` whose every step lies in the spans."""
        raise NotImplementedError


@dataclass(frozen=True)
class Recurrent(Model):
    """An embedding, LSTM or GRU layers, a Linear layer."""

    layers: list[recurrent.Layer]

    def grow(self, gradients: Gradients, words: Tensor, start: int, *, equalise: bool, most: int) -> Grown:
        """Return the prefixes whose every step lies in the spans of all layers."""
        _check_sent(gradients, [name for layer in self.layers for name in layer.names[:3]])
        spans = [span_of(layer.gradient(gradients), equalise=equalise) for layer in self.layers[:1]]
        first = spans[0]
        if first.power == 0:
            return _full(first, "recurrent layer's")
        spans += [span_of(layer.gradient(gradients), equalise=equalise, least=first.rank) for layer in self.layers[1:]]
        head = self.head_span(gradients, first.rank, equalise=equalise)
        tree = recurrent.grow(self.layers, self.embedding, spans, head, words, start, most=most)
        return _grown(tree, first, most)


@dataclass(frozen=True)
class Attention(Model):
    """A causal model whose modules with parameters are Embeddings, Linear layers and LayerNorms."""

    network: attention.Network

    def grow(self, gradients: Gradients, words: Tensor, start: int, *, equalise: bool, most: int) -> Grown:
        """Return the prefixes whose every position lies in the spans of all Linear layers."""
        groups = self.network.groups
        _check_sent(gradients, [name for group in groups for name in (*group.weights, *group.biases)])
        first = span_of(attention.stacked(gradients, groups[0]), equalise=equalise)
        if first.power == 0:
            return _full(first, "first Linear layer's")
        later = [
            span_of(attention.stacked(gradients, group), equalise=equalise, least=first.rank) for group in groups[1:]
        ]
        later.append(self.head_span(gradients, first.rank, equalise=equalise))
        return _grown(attention.grow(self.network, first, later, words, start, most=most), first, most)


def tokens_of(model: Model, words: Sequence[int]) -> Tensor:
    """Return the different tokens among `words`; refuse tokens that the model does not have."""
    if not words or not 0 <= min(words) <= max(words) < len(model.embedding):
        raise InputError(f"words must be some of the model's {len(model.embedding)} tokens")
    different: Tensor = torch.tensor(words, device=model.embedding.device).unique()
    return different


def _check_sent(gradients: Gradients, names: Sequence[str]) -> None:
    for name in names:
        if name not in gradients:
            raise InputError(f"the gradient of '{name}' is not sent, but prefixes are read from its span")


def _full(span: Span, whose: str) -> Grown:
    width = len(span.basis)
    return Grown(None, span.rank, f"the {whose} gradient has full rank: {width} prefixes or more, or noise")


def _grown(tree: Tree | None, first: Span, most: int) -> Grown:
    if tree is None:
        return Grown(None, first.rank, f"more than {most} prefixes lie in the spans")
    if len(tree) == 0:
        return Grown(tree, first.rank, "not even the start mark lies in the spans")
    return Grown(tree, first.rank)


def recognise(model: nn.Module, head: str) -> Model:
    """Return the parts of a language model; raise an error that names any module of an unknown kind."""
    owners = {name: module for name, module in model.named_modules() if module._parameters}
    embeddings = {name: module for name, module in owners.items() if isinstance(module, nn.Embedding)}
    layers = {name: module for name, module in owners.items() if isinstance(module, nn.LSTM | nn.GRU)}
    last = owners.get(head)
    if not isinstance(last, nn.Linear):
        raise InputError(f"the model's last layer '{head}' is not a Linear layer")
    supported = nn.Embedding | nn.LSTM | nn.GRU if layers else nn.Embedding | nn.Linear | nn.LayerNorm
    for name, module in owners.items():
        if not isinstance(module, supported) and module is not last:
            kinds = "Embedding, LSTM, GRU and a last Linear" if layers else "Embedding, LSTM, GRU, Linear and LayerNorm"
            raise InputError(f"module '{name}' is a {type(module).__name__}, but supported are {kinds}")
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    words = {name: module for name, module in embeddings.items() if module.num_embeddings == last.out_features}
    if len(words) != 1 or len(layers) > 1:
        raise InputError(
            f"{type(model).__name__} must have one Embedding of as many tokens as the last layer has classes "
            f"({last.out_features}), and at most one LSTM or GRU; it has {len(words)} and {len(layers)}"
        )
    (embedding,) = words.values()
    if embedding.max_norm is not None or embedding.scale_grad_by_freq:
        raise InputError("an Embedding with max_norm or scale_grad_by_freq is not supported")
    facts = (
        embedding.weight.detach(),
        last.in_features,
        names[embedding.weight],
        names[last.weight],
        None if last.bias is None else names[last.bias],
    )
    if layers:
        ((name, module),) = layers.items()
        recognised = Recurrent(*facts, recurrent.layers_of(name, module))
        _check(model, recognised, last)
        return recognised
    return Attention(*facts, attention.network(model, head, last.out_features))


def _check(model: nn.Module, own: Recurrent, last: nn.Linear) -> None:
    """Refuse a model that computes anything else between its modules."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(len(own.embedding), (2, 5), generator=generator).to(own.embedding.device)
    states = recurrent.run(own.layers, own.embedding[tokens].double())
    with torch.no_grad(), evaluating(model):
        logits = model(tokens)
        expected = nn.functional.linear(states.to(last.weight.dtype), last.weight, last.bias)
    if logits.shape != expected.shape or float((logits - expected).norm()) > ALIKE * float(logits.norm()):
        raise InputError(
            f"{type(model).__name__} does more than its Embedding, recurrent layers and Linear layer one after the "
            "other; such a model is not supported"
        )
