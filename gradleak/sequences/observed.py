"""Compute the gradients that a server receives from a client that trains a speech recogniser."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.arguments import checked_arguments
from gradleak.calling import called
from gradleak.errors import InputError
from gradleak.leak import Defense, Gradients, Leak, defended, descended, evaluating, naming
from gradleak.models.recogniser import START, Recogniser

HEAD = "head"
# The decoder's first layer: its gradient is enough to read a transcript.
FIRST = ("cells.0.weight_ih", "cells.0.weight_hh", "cells.0.bias_ih")


@checked_arguments()
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
    """Compute a client's gradients on utterances, and return what the server receives.

    The decoder reads the true previous tokens (teacher forcing). The loss is the mean cross-entropy over all tokens of
    a step.

    Args:
        model: The recogniser.
        speech: The frames (F, 80) of each utterance.
        tokens: The transcript of each utterance, with the end mark.
        start: The token that the decoder reads first.
        only: The parameters whose gradients are sent; all by default.
        defense: Changes the gradients before they are sent.
        local_steps: The number of gradient descent steps, among which the utterances are divided. Their gradients are
            summed.
        rate: The learning rate of these steps.
        difference: Whether the client sends (W₀ − W_K) / rate, computed from rounded weights, instead of the sum.

    Examples:
        >>> from gradleak.models.recogniser import recogniser
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> leak = observe_speech(recogniser("small", 40), [speech], [[7, 12, 2]], only=["head.weight"])
        >>> {name: tuple(gradient.shape) for name, gradient in leak.gradients.items()}
        {'head.weight': (40, 512)}
    """
    if len(speech) != len(tokens) or not speech or not all(len(transcript) for transcript in tokens):
        raise InputError(
            f"{len(speech)} utterances and {len(tokens)} transcripts: each needs its own, of at least one token"
        )
    classes = model.head.out_features
    if not all(0 <= token < classes for token in (start, *(word for transcript in tokens for word in transcript))):
        raise InputError(f"start and tokens must be some of the recogniser's {classes} tokens")
    if local_steps < 1 or len(speech) % local_steps:
        raise InputError(f"{len(speech)} utterances cannot be divided evenly among {local_steps} local steps")
    named = dict(model.named_parameters())
    if missing := [name for name in only or () if name not in named]:
        raise InputError(f"the recogniser has no parameter '{missing[0]}'")
    if only is not None and not only:
        raise InputError("`only` must name at least one parameter whose gradient is sent")
    wanted = list(named) if only is None else list(only)
    size = len(speech) // local_steps
    # Over several steps all parameters are updated, even if the gradients of only some are sent.
    learned = list(named) if local_steps > 1 else wanted
    parts = [slice(first, first + size) for first in range(0, len(speech), size)]
    steps = [partial(_gradients, model, learned, speech[part], tokens[part], start) for part in parts]
    before = {name: parameter.detach() for name, parameter in named.items()}
    with evaluating(model), naming("the recogniser does not take these utterances"):
        total, after = descended(before, steps, rate)
    sent = {name: (before[name] - after[name]) / rate if difference else total[name] for name in wanted}
    return Leak(model, defended(sent, defense), HEAD, size, None, local_steps)


def last_gradient(model: Recogniser, inputs: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return the gradient (C, I) of the last layer's weight, from the layer's inputs (S, I) and the tokens (S).

    The loss is that of `observe_speech`. Nothing below the last layer is needed, so several gradients, such as those of
    batches, follow from the inputs of each utterance.
    """
    with torch.no_grad():
        errors: Tensor = model.head(inputs).softmax(dim=1)
        errors[range(len(tokens)), list(tokens)] -= 1
        return errors.T @ inputs / len(tokens)


def _gradients(
    model: Recogniser,
    learned: Sequence[str],
    speech: Sequence[Tensor],
    tokens: Sequence[Sequence[int]],
    start: int,
    own: Gradients,
) -> Gradients:
    """Return the gradients of one step at weights `own`, computed utterance by utterance without padding."""
    values = own | {name: own[name].detach().requires_grad_() for name in learned}
    count = sum(map(len, tokens))
    total: Gradients = {}
    for sound, words in zip(speech, tokens, strict=True):
        labels = torch.tensor(words, device=sound.device)
        before = torch.cat([labels.new_tensor([start]), labels[:-1]])
        logits = called(model, values, (sound.unsqueeze(0), before.unsqueeze(0)))
        loss = F.cross_entropy(logits[0], labels, reduction="sum") / count
        gradients = torch.autograd.grad(loss, [values[name] for name in learned])
        for name, value in zip(learned, gradients, strict=True):
            total[name] = total[name] + value if name in total else value
    return total
