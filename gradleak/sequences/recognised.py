"""Recognise models whose sentences can be read, by their modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, evaluating
from gradleak.sequences import recurrent, transformers
from gradleak.sequences.span import CLASSIFIED, SLACK, Span, everything, full, span_of
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
        least: The number of different prefixes that the batch has at least: the largest rank of a layer's gradient.
    """

    tree: Tree | None
    rank: int
    reason: str = ""
    least: int = 0


@dataclass(frozen=True)
class Model:
    """A language model, or a causal model that classifies texts.

    Attributes:
        embedding: (V, E).
        head: The last layer.
        embedding_name: The name of the embedding's weight in the leak.
        head_weight: The name of the last layer's weight in the leak.
        head_bias: The name of the last layer's bias, or None.
        layers: The other layers whose gradients have spans, in the order of execution.
        search: Returns the prefixes of words that lie in the spans of these layers and of the last one, see `grow`.
        placed: Whether a word that is repeated from the beginning has other inputs than the word alone.
        classifies: Whether the model gives one output for a text, from the text's last word.
    """

    embedding: Tensor
    head: nn.Linear
    embedding_name: str
    head_weight: str
    head_bias: str | None
    layers: Sequence[recurrent.Layer | transformers.Site]
    search: Callable[..., Tree | None]
    placed: bool = True
    classifies: bool = False

    @property
    def tied(self) -> bool:
        """Whether the last layer's weight is the embedding."""
        return self.embedding_name == self.head_weight

    def head_span(self, gradients: Gradients, least: int, *, equalise: bool) -> Span:
        """Return the span of the last layer's inputs; the whole space if its gradients are not sent, or are tied.

        A classifier's last layer has a gradient only at the last position of each text. So the whole space is returned.
        """
        gradient = None if self.tied or self.classifies else gradients.get(self.head_weight)
        if gradient is None or (self.head_bias is not None and self.head_bias not in gradients):
            return everything(self.embedding.new_empty(0, self.head.in_features))
        if self.head_bias is not None:
            gradient = torch.cat([gradient, gradients[self.head_bias][:, None]], dim=1)
        return span_of(gradient, equalise=equalise, least=least)

    def grow(self, leak: Leak, words: Tensor, start: int | None, *, equalise: bool, most: int) -> Grown:
        """Return the prefixes of `words` whose every step lies in the spans of all layers."""
        first, *later = (layer.gradient(leak) for layer in self.layers)
        span = span_of(first, equalise=equalise)
        if span.power == 0:
            return Grown(None, span.rank, full(span))
        spans, least, slack = [span], span.rank, CLASSIFIED if self.classifies else SLACK
        for gradient in later:
            spans.append(span_of(gradient, equalise=equalise, least=least, slack=slack))
            # In a classifier's last attention, few weights of each head have a gradient at the positions before the
            # last. So the rank there may exceed the number of words, and still be below the number of prefixes.
            if self.classifies and spans[-1].power:
                least = max(least, spans[-1].rank)
        spans.append(self.head_span(leak.gradients, span.rank, equalise=equalise))
        tree = self.search(spans, words, start, most=most)
        if tree is None:
            # A normalisation leaves one dimension without inputs.
            many = f"more than {most} prefixes lie in the spans"
            return Grown(None, span.rank, full(span) if span.rank > len(span.basis) - 2 else many)
        nothing = "no word" if start is None else "not even the start mark"
        least = max(span.rank for span in spans if span.power)
        return Grown(tree, span.rank, "" if len(tree) else f"{nothing} lies in the spans", least)


def tokens_of(model: Model, words: Sequence[int]) -> Tensor:
    """Return the different tokens among `words`; refuse tokens that the model does not have."""
    if not words or not 0 <= min(words) <= max(words) < len(model.embedding):
        raise InputError(f"words must be some of the model's {len(model.embedding)} tokens")
    different: Tensor = torch.tensor(words, device=model.embedding.device).unique()
    return different


def recognise(model: nn.Module, head: str, *, longest: int | None = None) -> Model:
    """Return the parts of a language model or a classifier; raise an error that names what is not supported.

    Args:
        model: The model.
        head: The name of its last layer.
        longest: The largest number of positions of a transformer, None if unknown.
    """
    owners = {name: module for name, module in model.named_modules() if module._parameters}
    embeddings = {name: module for name, module in owners.items() if isinstance(module, nn.Embedding)}
    layers = {name: module for name, module in owners.items() if isinstance(module, nn.LSTM | nn.GRU | nn.RNN)}
    last = owners.get(head)
    if not isinstance(last, nn.Linear):
        raise InputError(f"the model's last layer '{head}' is not a Linear layer")
    for name, module in owners.items() if layers else ():
        if not isinstance(module, nn.Embedding | nn.LSTM | nn.GRU) and module is not last:
            raise InputError(
                f"module '{name}' is a {type(module).__name__}, but supported are Embedding, LSTM, GRU "
                "and a last Linear"
            )
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    classifies = not layers and transformers.classifies(model, longest)
    words = {name: module for name, module in embeddings.items() if module.num_embeddings == last.out_features}
    if classifies:
        words = {"": transformers.vocabulary_of(model, longest or 1)}
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
        last,
        names[embedding.weight],
        names[last.weight],
        None if last.bias is None else names[last.bias],
    )
    if layers:
        ((name, module),) = layers.items()
        _check(model, embedding, module, last)
        own = recurrent.layers_of(name, module)
        return Model(*facts, own, partial(recurrent.grow, own, embedding.weight.detach()))
    network = transformers.network(model, head, embedding.num_embeddings, longest=longest)
    return Model(*facts, network.sites, partial(transformers.grow, network), network.placed, classifies)


def _check(model: nn.Module, embedding: nn.Embedding, layers: nn.RNNBase, last: nn.Linear) -> None:
    """Refuse a model that computes anything else between its modules."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(embedding.num_embeddings, (2, 5), generator=generator).to(embedding.weight.device)
    with torch.no_grad(), evaluating(model):
        logits, words = model(tokens), embedding(tokens)
        states = layers(words)[0] if layers.batch_first else layers(words.transpose(0, 1))[0].transpose(0, 1)
        expected = last(states)
    if logits.shape != expected.shape or float((logits - expected).norm()) > ALIKE * float(logits.norm()):
        raise InputError(
            f"{type(model).__name__} does more than its Embedding, recurrent layers and Linear layer one after the "
            "other; such a model is not supported"
        )
