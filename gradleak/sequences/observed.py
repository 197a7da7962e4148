"""What a server sees of speech: gradients of a recogniser that is told the words before each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from gradleak.errors import InputError
from gradleak.leak import Defense, Gradients, Leak, evaluating
from gradleak.models.recogniser import START, Recogniser

HEAD = "head"
# The decoder's first layer, all that a transcript is read from.
FIRST = ("cells.0.weight_ih", "cells.0.weight_hh", "cells.0.bias_ih")


def observe_speech(
    model: Recogniser,
    speech: Sequence[Tensor],
    tokens: Sequence[Sequence[int]],
    *,
    start: int = START,
    only: Sequence[str] | None = None,
    defense: Defense | None = None,
    local_steps: int = 1,
    rate: float = 0.1,
    difference: bool = False,
) -> Leak:
    """Let a client compute its gradients on utterances, and return what the server receives.

    `speech`: (F, 80) an utterance; `tokens`: its transcript with the end mark; the loss is the mean cross-entropy over
    all tokens of a step. `only`: names of parameters, where an attack looks at no others. `local_steps`: utterances are
    shared out to so many steps of gradient descent with `rate`, and the gradients are their sum; `difference`: they are
    (W₀ − W_K) / rate instead, which is what comes of weights that are sent in their own precision.
    """
    if len(speech) != len(tokens) or not speech or not all(len(one) for one in tokens):
        raise InputError(
            f"{len(speech)} utterances and {len(tokens)} transcripts: each needs its own, of a token at least"
        )
    if local_steps < 1 or len(speech) % local_steps:
        raise InputError(f"{len(speech)} utterances cannot be shared out to {local_steps} local steps")
    named = dict(model.named_parameters())
    if missing := [name for name in only or () if name not in named]:
        raise InputError(f"the recogniser has no parameter '{missing[0]}'")
    wanted = list(named) if only is None else list(only)
    size = len(speech) // local_steps
    # Only what was asked for is sent; along several steps all of it is learned.
    own = {name: named[name].detach() for name in named}
    total: Gradients = {}
    with evaluating(model):
        for step in range(local_steps):
            learned = list(named) if local_steps > 1 else wanted
            part = slice(step * size, (step + 1) * size)
            gradients = _step(model, own, learned, speech[part], tokens[part], start)
            total = {name: total[name] + gradients[name] if total else gradients[name] for name in wanted}
            if local_steps > 1:
                own = {name: own[name] - rate * gradients[name] for name in own}
    if difference:
        if local_steps == 1:
            own = own | {name: own[name] - rate * total[name] for name in wanted}
        total = {name: (named[name].detach() - own[name]) / rate for name in wanted}
    sent = defense(total) if defense else total
    return Leak(model, sent, HEAD, size, None, local_steps)


def _step(
    model: Recogniser,
    own: Gradients,
    learned: Sequence[str],
    speech: Sequence[Tensor],
    tokens: Sequence[Sequence[int]],
    start: int,
) -> Gradients:
    """Return the gradients of one step, utterance by utterance: none is padded, and none knows of another."""
    values = own | {name: own[name].detach().requires_grad_() for name in learned}
    count = sum(map(len, tokens))
    total: Gradients = {}
    for sound, words in zip(speech, tokens, strict=True):
        labels = torch.tensor(words, device=sound.device)
        before = torch.cat([labels.new_tensor([start]), labels[:-1]])
        logits = functional_call(model, values, (sound.unsqueeze(0), before.unsqueeze(0)))
        loss = F.cross_entropy(logits[0], labels, reduction="sum") / count
        found = torch.autograd.grad(loss, [values[name] for name in learned])
        for name, value in zip(learned, found, strict=True):
            total[name] = total[name] + value if name in total else value
    return total
