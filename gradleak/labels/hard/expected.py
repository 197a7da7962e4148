"""How sure a count of labels is: its expected share right, by running the attack on batches that are made up."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gradleak.answers import Expected
from gradleak.augment import one_hot
from gradleak.cases import Standins
from gradleak.defenses import Each
from gradleak.errors import InputError
from gradleak.labels.hard.attacks import Knowledge, count_heads
from gradleak.leak import Defense, HeadLeaks, Leak, head_inputs
from gradleak.losses import CrossEntropy, Loss

# Stand-in inputs that are run through the model.
POOL = 256
# Sides of the noise that stand-in images are enlarged from, and how much more contrast they have than white noise.
SIDES, CONTRAST = (2, 4, 8), 2.0
# Simulated gradients are made so many entries at a time.
ENTRIES = 20_000_000


def standins_of(
    leak: Leak,
    *,
    auxiliary: tuple[Tensor, Tensor] | None = None,
    inputs: Tensor | None = None,
    count: int = POOL,
    seed: int = 0,
) -> Standins:
    """Run samples through the model that take the private ones' place in simulated batches.

    `auxiliary`: inputs (M, …) of the same kind and their classes (M,), where the attacker has some; else made-up
    `inputs` (M, …), by default `count` inputs of white noise and, for images, of smooth noise.
    """
    if auxiliary is not None:
        features, logits = head_inputs(leak.model, auxiliary[0], head=leak.head or None)
        return Standins(features.cpu(), logits.cpu(), auxiliary[1].cpu())
    if inputs is None:
        if leak.input_shape is None:
            raise InputError("the leak does not say what shape one input has: give inputs or auxiliary samples")
        inputs = _noise(leak.input_shape, count, torch.Generator().manual_seed(seed)).to(leak.weight)
    features, logits = head_inputs(leak.model, inputs, head=leak.head or None)
    return Standins(features.cpu(), logits.cpu())


def _noise(shape: tuple[int, ...], count: int, generator: torch.Generator) -> Tensor:
    """Return white noise and, of images, smooth noise, of which networks more often say one class and another."""
    if len(shape) != 3:
        return torch.randn(count, *shape, generator=generator)
    channels, *sides = shape
    each = -(-count // (len(SIDES) + 1))
    coarse = [CONTRAST * torch.randn(each, channels, side, side, generator=generator) for side in SIDES]
    smooth = [F.interpolate(noise, size=tuple(sides), mode="bilinear") for noise in coarse]
    return torch.cat([torch.randn(each, *shape, generator=generator), *smooth])


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
    """Return what share of a batch's labels `count_labels` is expected to get right, by simulation.

    The attack is run on made-up batches of the leak's model and batch size; nothing private is used. Labels are drawn
    evenly. The sample of a label is an auxiliary one of its class, where there are such; else one of the `standins`
    (`standins_of`, which is computed where it is not given), each as likely as the model's probability of the label.
    A trained network is less sure of made-up inputs than of real ones, and the share comes out too high; auxiliary
    samples show it as it is. Local steps are simulated without the drift of the weights. `defense`: one that treats
    every tensor by itself, as noise; others would need whole gradients, and are refused.
    """
    if batches < 1:
        raise InputError(f"a simulation takes at least 1 batch; got {batches}")
    if defense is not None and not isinstance(defense, Each):
        raise InputError(
            "a count is simulated with the last layer alone: behind defences that treat tensors one by one"
        )
    known = Knowledge(leak.model, auxiliary, leak.input_shape, dummy, loss, epsilon, leak.local_steps, defense, seed)
    standins = standins or standins_of(leak, auxiliary=auxiliary, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    classes, size = len(leak.weight), leak.batch_size * leak.local_steps
    there = torch.arange(classes) if standins.labels is None else standins.labels.unique()
    labels = there[torch.randint(len(there), (batches * size,), generator=generator)]
    chosen = _drawn(standins, labels, generator)
    truth = F.one_hot(labels.view(batches, size), classes).sum(dim=1)
    right, guessed, at_once = 0, 0, max(1, ENTRIES // leak.weight.numel())
    for start in range(0, batches, at_once):
        part, own = slice(start * size, (start + at_once) * size), truth[start : start + at_once]
        heads = _observed(leak, standins, chosen[part], labels[part], known)
        sent = heads if defense is None else heads.defended(defense)
        right += int(torch.minimum(count_heads(sent, method, known, whatever_holds=True).cpu(), own).sum())
        guessed += int(torch.minimum(count_heads(sent, "guess", known).cpu(), own).sum())
    return Expected(right / (batches * size), guessed / (batches * size), batches)


def _drawn(standins: Standins, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return which stand-in takes each label's place (N,)."""
    chosen = torch.empty_like(labels)
    probabilities = standins.logits.double().softmax(dim=1)
    for label in labels.unique().tolist():
        fits = probabilities[:, label] if standins.labels is None else (standins.labels == label).double()
        places = (labels == label).nonzero()[:, 0]
        # No stand-in may fit at all: then any does.
        chosen[places] = torch.multinomial(fits + 1e-12, len(places), replacement=True, generator=generator)
    return chosen


def _observed(leak: Leak, standins: Standins, chosen: Tensor, labels: Tensor, known: Knowledge) -> HeadLeaks:
    """Return the last layer's gradients of batches of these stand-ins and labels (N·B,)."""
    like, classes, size = leak.weight, len(leak.weight), leak.batch_size * leak.local_steps
    hot = one_hot(labels, classes).to(like)
    rows = (1 - known.epsilon) * hot + known.epsilon / max(1, classes - 1) * (1 - hot)
    logits = standins.logits[chosen].to(like).requires_grad_()
    values = (known.loss or CrossEntropy())(logits, rows)
    (errors,) = torch.autograd.grad(values.sum() / leak.batch_size, [logits])
    errors, seen = errors.unflatten(0, (-1, size)), standins.features[chosen].to(like).unflatten(0, (-1, size))
    biases = None if leak.bias_gradient is None else errors.sum(dim=1)
    return HeadLeaks(like, leak.bias, errors.mT @ seen, biases, leak.batch_size)
