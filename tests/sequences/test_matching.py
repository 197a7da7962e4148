"""Matching by factors is matching by gradients; the truth is where it is least; one run reads short texts."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.data.speech import pseudo_speech
from gradleak.leak import Leak
from gradleak.models.recogniser import START, Recogniser, recogniser
from gradleak.sequences import match_transcript, observe_speech
from gradleak.sequences.matching import PRINTED, _Decoder

CLASSES = 60
SAID = [11, 42, 7, 11, 2]
SOUND = pseudo_speech("a text of some length")
SIZES = ("small", "small-2")
BAGS = ([2, 7, 11, 42], None)


def leaked(model: Recogniser, tokens: list[int]) -> Leak:
    return observe_speech(model, [SOUND], [tokens])


def plain_distance(model: Recogniser, leak: Leak, contexts: Tensor, labels: Tensor) -> float:
    """The same in a plain way: run the model's own layers in float64, and compare all gradients entry by entry."""
    own = recogniser("small-2" if len(model.cells) > 1 else "small", CLASSES, seed=1).double()
    words = own.embedding.weight.detach()
    before = torch.cat([words[START][None], labels[:-1] @ words])
    states: list[tuple[Tensor, Tensor] | None] = [None] * len(own.cells)
    heard, total = torch.zeros(1, contexts.shape[1], dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for word, context, label in zip(before, contexts, labels, strict=True):
        below = word[None]
        for layer, cell in enumerate(own.cells):
            given = context[None] if layer else heard
            states[layer] = cell(torch.cat([below, given], dim=1), states[layer])
            below = states[layer][0]  # type: ignore[index]
        heard = context[None]
        logits = own.head(torch.cat([below, heard], dim=1))[0]
        total = total - (label * F.log_softmax(logits, dim=0)).sum() / len(labels)
    names = [f"cells.{n}.{kind}" for n in range(len(own.cells)) for kind in ("weight_ih", "weight_hh", "bias_ih")]
    names += ["head.weight", "head.bias"]
    found = torch.autograd.grad(total, [own.get_parameter(name) for name in names])
    squares = [(value - leak.gradients[name].double()).square().sum() for name, value in zip(names, found, strict=True)]
    return float(torch.stack(squares).sum().sqrt())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bag", BAGS)
def test_factors_give_the_distance_of_the_gradients(size: str, bag: list[int] | None) -> None:
    model = recogniser(size, CLASSES, seed=1)
    leak = leaked(model, SAID)
    decoder = _Decoder(leak, START, bag)
    # Free labels: also such as are no distributions.
    contexts, labels = (torch.randn_like(one) for one in decoder.drawn(PRINTED, 3, torch.Generator().manual_seed(0)))
    found = decoder.distance(contexts.requires_grad_(), labels.requires_grad_()).detach()
    for start in range(3):
        whole = labels[start].detach().double()
        if bag is not None:
            whole = torch.zeros(len(SAID), CLASSES, dtype=torch.float64).index_add(1, torch.tensor(bag), whole)
        expected = plain_distance(model, leak, contexts[start].detach().double(), whole)
        assert float(found[start]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_the_truth_is_where_nothing_is_left(size: str) -> None:
    model = recogniser(size, CLASSES, seed=1)
    bag = sorted(set(SAID))
    decoder = _Decoder(leaked(model, SAID), START, bag)
    read = torch.tensor([[START, *SAID[:-1]]])
    contexts = model.steps(model.listen(SOUND[None]), read)[..., model.cells[0].hidden_size :].detach()
    labels = F.one_hot(torch.tensor([bag.index(one) for one in SAID]), len(bag)).float()[None]
    swapped = labels[:, [1, 0, 2, 3, 4]]
    contexts.requires_grad_()
    true, other = (decoder.distance(contexts, one).detach().item() / decoder.size for one in (labels, swapped))
    assert true < 1e-3
    assert other > 0.1


@pytest.mark.parametrize("bag", ["revealed", None])
def test_labels_by_softmax_read_it_in_one_run(bag: str | None) -> None:
    found = match_transcript(leaked(recogniser("small", CLASSES, seed=1), SAID), bag=bag)  # type: ignore[arg-type]
    assert found.tokens == SAID
    assert found.bag == (sorted(set(SAID)) if bag else None)
    assert found.variables == len(SAID) * (256 + (4 if bag else CLASSES))
    assert float(found.distances.min()) < 0.2


def test_the_nearest_start_is_taken() -> None:
    leak = leaked(recogniser("small", CLASSES, seed=1), SAID)
    found = match_transcript(leak, replace(PRINTED, steps=40), starts=4, seed=3)
    assert len(found.attempts) == 4
    assert found.tokens == found.attempts[int(found.distances.argmin())]
    again = match_transcript(leak, replace(PRINTED, steps=40), starts=4, seed=3)
    assert torch.equal(found.distances, again.distances)
