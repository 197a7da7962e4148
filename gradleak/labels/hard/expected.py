"""Estimate how accurate a count of labels is, by running the attack on simulated batches."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.answers import Expected
from gradleak.arguments import checked_arguments
from gradleak.augment import one_hot
from gradleak.cases import Standins
from gradleak.defenses import Each
from gradleak.errors import InputError
from gradleak.labels.hard.attacks import count_heads
from gradleak.labels.hard.knowledge import Knowledge, check_auxiliary
from gradleak.leak import Defense, HeadLeaks, Leak, head_inputs
from gradleak.losses import CrossEntropy, Loss

# Made-up inputs that are run through the model.
POOL = 256
# Made-up images are enlarged from noise with these sides, with this many times the contrast of white noise.
SIDES, CONTRAST = (2, 4, 8), 2.0
# Entries of simulated gradients that are computed at a time.
ENTRIES = 20_000_000


@checked_arguments()
def standins_of(
    leak: Leak,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    inputs: Tensor | None = None,
    count: int = POOL,
    seed: int = 0,
) -> Standins:
    """Make stand-ins for the private samples: run other samples through the model, for simulated batches.

    Args:
        leak: The gradient that a client sent, with its model.
        auxiliary: Samples of the same kind as the private ones: inputs (M, …) and classes (M,), if the attacker has
            them.
        inputs: Made-up inputs (M, …) otherwise; by default white noise and, for images, smooth noise.
        count: The number of inputs that are made up by default.
        seed: Seed of the noise.

    Returns:
        Last-layer inputs and logits of the samples.
    """
    if auxiliary is not None:
        inputs = auxiliary[0]
    elif inputs is None:
        if leak.input_shape is None:
            raise InputError("the leak does not say what shape one input has: give inputs or auxiliary samples")
        inputs = _noise(leak.input_shape, count, torch.Generator().manual_seed(seed)).to(leak.weight)
    features, logits = head_inputs(leak.model, inputs, head=leak.head or None)
    labels = None if auxiliary is None else check_auxiliary(auxiliary, logits.shape[1]).cpu()
    return Standins(features.cpu(), logits.cpu(), labels)


def _noise(shape: tuple[int, ...], count: int, generator: torch.Generator) -> Tensor:
    """Return white noise and, for images, also smooth noise, for which networks predict a wider variety of classes."""
    if len(shape) != 3:
        return torch.randn(count, *shape, generator=generator)
    channels, *sides = shape
    share = -(-count // (len(SIDES) + 1))
    coarse = [CONTRAST * torch.randn(share, channels, side, side, generator=generator) for side in SIDES]
    smooth = [F.interpolate(noise, size=tuple(sides), mode="bilinear") for noise in coarse]
    return torch.cat([torch.randn(share, *shape, generator=generator), *smooth])


@checked_arguments()
def expected_share(
    leak: Leak,
    method: str,
    *,
    standins: Standins | None = None,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    dummy: str = "random",
    loss: Loss | None = None,
    epsilon: float = 0.0,
    defense: Defense | None = None,
    batches: int = 32,
    seed: int = 0,
) -> Expected:
    """Estimate by simulation what share of a batch's labels `count_labels` gets right.

    The attack is run on simulated batches of the leak's batch size, and nothing private is used. Labels are drawn
    uniformly. For each label, an auxiliary sample of its class is used if there is one. Otherwise a stand-in is
    drawn, with a chance in proportion to the probability that the model gives the label. A trained network is less
    certain of made-up inputs than of real ones, so the share is then too high. Local steps are simulated without the
    change of the weights. What "learned" learns from one half of the auxiliary samples is judged on the other half.

    Args:
        leak: The gradient that a client sent, with its model and batch size.
        method: A method of `count_labels`.
        standins: Samples from `standins_of`, computed if they are not given.
        auxiliary: Samples of the same kind as the private ones: inputs (M, …) and classes (M,).
        dummy: The dummy inputs of "llg*".
        loss: The client's loss, cross-entropy by default.
        epsilon: The smoothing of the client's labels.
        defense: The client's defence. It must treat every tensor separately, as noise does, because only the last layer
            is simulated.
        batches: The number of simulated batches.
        seed: Seed of all random numbers.

    Returns:
        The expected share, and that of an even guess.
    """
    if batches < 1:
        raise InputError(f"a simulation takes at least 1 batch; got {batches}")
    if defense is not None and not isinstance(defense, Each):
        raise InputError(
            "a count is simulated with the last layer alone: behind defences that treat tensors one by one"
        )
    known = Knowledge(leak.model, auxiliary, leak.input_shape, dummy, loss, epsilon, leak.local_steps, defense, seed)
    standins = standins or standins_of(leak, auxiliary=auxiliary, seed=seed)
    if method == "learned" and auxiliary is not None and standins.labels is not None:
        # What was learned from some samples is judged by batches of others.
        own = known.halves.cpu()
        inputs, labels = auxiliary
        known = replace(known, auxiliary=(inputs[own.to(inputs.device)], labels[own.to(labels.device)]))
        standins = Standins(standins.features[~own], standins.logits[~own], standins.labels[~own])
    generator = torch.Generator().manual_seed(seed)
    classes, size = len(leak.weight), leak.batch_size * leak.local_steps
    present = torch.arange(classes) if standins.labels is None else standins.labels.unique()
    labels = present[torch.randint(len(present), (batches * size,), generator=generator)]
    chosen = _drawn(standins, labels, generator)
    truth = F.one_hot(labels.view(batches, size), classes).sum(dim=1)
    right, guessed, at_once = 0, 0, max(1, ENTRIES // leak.weight.numel())
    for start in range(0, batches, at_once):
        part, batch_truth = slice(start * size, (start + at_once) * size), truth[start : start + at_once]
        heads = _observed(leak, standins, chosen[part], labels[part], known)
        sent = heads if defense is None else heads.defended(defense)
        right += int(torch.minimum(count_heads(sent, method, known, whatever_holds=True).cpu(), batch_truth).sum())
        guessed += int(torch.minimum(count_heads(sent, "guess", known).cpu(), batch_truth).sum())
    return Expected(right / (batches * size), guessed / (batches * size), batches)


def _drawn(standins: Standins, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return the stand-in that is drawn for each label (N,)."""
    chosen = torch.empty_like(labels)
    probabilities = standins.logits.double().softmax(dim=1)
    for label in labels.unique().tolist():
        weights = probabilities[:, label] if standins.labels is None else (standins.labels == label).double()
        positions = (labels == label).nonzero()[:, 0]
        # If no stand-in fits a label, all are equally likely.
        chosen[positions] = torch.multinomial(weights + 1e-12, len(positions), replacement=True, generator=generator)
    return chosen


def _observed(leak: Leak, standins: Standins, chosen: Tensor, labels: Tensor, known: Knowledge) -> HeadLeaks:
    """Return the last layer's gradients of batches of these stand-ins and labels (N·B,)."""
    weight, classes, size = leak.weight, len(leak.weight), leak.batch_size * leak.local_steps
    hot = one_hot(labels, classes).to(weight)
    targets = (1 - known.epsilon) * hot + known.epsilon / max(1, classes - 1) * (1 - hot)
    logits = standins.logits[chosen].to(weight).requires_grad_()
    losses = (known.loss or CrossEntropy())(logits, targets)
    (errors,) = torch.autograd.grad(losses.sum() / leak.batch_size, [logits])
    errors, features = errors.unflatten(0, (-1, size)), standins.features[chosen].to(weight).unflatten(0, (-1, size))
    biases = None if leak.bias_gradient is None else errors.sum(dim=1)
    return HeadLeaks(weight, leak.bias, errors.mT @ features, biases, leak.batch_size)
