"""Peeling: a whole batch out of the averaged gradient of a convolutional network with residual joints.

1. The last layer gives every sample's features and errors p − y, and with them the gradient at the last map.
2. The last convolution's gradient gives the slopes of that map's units (`opening`).
3. With the slopes known each convolution's inputs are a linear problem, channel by channel (`layer`); they give the
   slopes of the layer above it, as far down as there are more equations than unknowns (`sweep`).
4. At a joint x + f(x) what came out less f(x) is x wherever the unit is on: entries that no equation has to give
   (`joints`).
5. What is left in front is inverted by matching the deepest maps that were reached, sample by sample, and the gradients
   of the layers in front of them (`front`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.cases import Attack, Case
from gradleak.errors import InputError
from gradleak.images.inversion.fully_connected import LayerReport
from gradleak.images.peeling.front import Fronts, matched
from gradleak.images.peeling.joints import shown
from gradleak.images.peeling.layer import counted, short
from gradleak.images.peeling.network import Network
from gradleak.images.peeling.opening import refused
from gradleak.images.peeling.sweep import Sweep
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.batch.recover import BatchLabels, recover_batch
from gradleak.leak import Leak, observe
from gradleak.precision import USUAL, Precision, coarser, rounding_unit

# A client rounds the p of its p − y by about this share of a unit.
ROUNDED = 0.5
TINY = 1e-300
# A map that is known better than this is matched.
GOOD = 1e-4
# Of a client that is known to round coarsely, one that is known to so many of its rounding units.
LOOSE = 30.0
# Images and labels whose gradient misses by less explain it: a few units misread near zero miss by a thousandth or so,
# an image that is another by far more.
EXPLAINS = 2e-2
# "unique" promises images to this relative error: three standard deviations, which is what is claimed, lie below it.
SURE, DEVIATIONS = 1e-3, 3.0
# An image is found if its map misses by this many times the map's own error.
FOUND = 10.0
# Steps in front of the last map that was peeled are cheap: an audit makes so many times as many as of matching.
STEPS = 5


@dataclass(frozen=True)
class Peeled:
    """A batch out of its gradient: `images` (B, …) and `labels` (B, C) in float64, NaN where they are lost.

    `nearest` (B, …): the images nearest to the deepest maps, whether or not they explain them; NaN where no map tells.
    `layers`: from the last to the first, what each layer's equations gave: its inputs, and the relative error that is
    claimed for them. `matched`: the steps whose values were matched for the images, `misfits` (B,) by how much each
    sample misses it, relatively, and `errors` (B,) the claimed error of each image, root mean square, inf where it was
    not found. `residual`: relative error of the gradient that images and labels give. `status`: "unique" where they
    explain it and are known to a thousandth; "found" where not all images could be had so well; "failed"; and the
    `reason`.
    """

    images: Tensor
    nearest: Tensor
    labels: Tensor
    layers: tuple[LayerReport, ...]
    matched: str
    misfits: Tensor
    errors: Tensor
    residual: float
    status: Status
    reason: str = ""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch; its reason says as well how many layers were peeled."""
        followed = f"the inputs of {len(self.layers)} layers follow" if self.layers else ""
        return (
            Answer(
                self.status,
                "; ".join(part for part in (followed, self.reason) if part),
                claimed=float(self.errors.max()),
                labels=self.labels if bool(self.labels.isfinite().all()) else None,
                inputs=self.images.nan_to_num(0.0),
            ),
        )


@dataclass(frozen=True)
class Count:
    """A layer's equations and unknowns, a channel of its inputs, where they are scarcest, and what is wrong with it."""

    name: str
    equations: int
    unknowns: int
    reason: str = ""


def counts(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> tuple[Count, ...]:
    """Return from the last layer to the first what the numbers alone say of peeling, before anything is tried."""
    return counts_of(Network(model, shape), batch_size)


def counts_of(network: Network, batch_size: int) -> tuple[Count, ...]:
    """Return the same of a network that has been traced."""
    found, opened = list[Count](), False
    told = network.source(network.steps[network.output].inputs[0]).name
    for step in reversed(network.steps.values()):
        users = [network.steps[user] for user in step.users]
        layers = [user.layer for user in users if user.layer is not None and user.name != network.output]
        if layers:
            size = step.shape if len(step.shape) == 3 else (*step.shape, 1, 1)
            equations, unknowns = counted(layers, size, batch_size)
            reason = "" if equations > unknowns else short(equations, unknowns)
            if reason and shown(network, step.name):
                reason = f"{reason}, joints aside"
            name = "+".join(user.parameter for user in users if user.layer is not None)
            found.append(Count(name, equations, unknowns, reason))
        elif step.kind == "activation" and not opened and step.name != told and len(step.shape) == 3:
            for path in network.below(step.name):
                layer = network.steps[path[-1]]
                assert layer.layer is not None
                if reason := refused(layer.layer, layer.shape, batch_size):
                    found.append(Count(layer.parameter, 0, 0, reason))
                break
        if step.kind == "other":
            found.append(Count(step.parameter or step.name, 0, 0, f"{step.says} cannot be walked back"))
        opened = opened or step.kind == "activation"
    return tuple(found)


def peel(
    leak: Leak,
    *,
    prior: str | LabelPrior = "smoothing",
    noise: float | None = 0.0,
    scale: float | None = 1.0,
    steps: int = 2000,
    seed: int = 0,
    precision: str | Precision | None = None,
) -> Peeled:
    """Take a batch of images out of a convolutional network's averaged gradient, layer by layer.

    `prior`: the shape of the labels. `noise`: the standard deviation of what was added to every entry, None to estimate
    it. `scale`: the factor on the gradient, None to find it. `steps`: how many the search for the images in front of
    the deepest maps may take, from random starts that `seed` decides. `precision`: what the client is known to compute
    in. The network: convolutions, batch norm in eval
    mode, activations, average pooling, residual sums and Linear layers, and factors and shifts of its own; what else it
    holds ends the way down, and is named.
    """
    if leak.input_shape is None:
        raise InputError("the leak does not say what shape the clients' inputs have")
    leak.check_one_step("peeling")
    with torch.no_grad():
        network = Network(leak.model, leak.input_shape)
        top = _last_layer(leak, prior, noise, scale, precision)
        nothing = top.labels.new_full((leak.batch_size, *leak.input_shape), torch.nan)
        lost = top.labels.new_full((leak.batch_size,), torch.inf)
        if top.status == "failed":
            return Peeled(
                nothing, nothing, top.labels, (), "", lost, lost, torch.inf, "failed", f"labels: {top.reason}"
            )
        dtype = leak.weight_gradient.dtype
        errors, loose = errors_of(leak, top, rounding_unit(precision, dtype))
        unit = rounding_unit(precision, dtype, convolutions=True)
        if coarser(precision, dtype, convolutions=True):
            # Of two operands that are rounded by themselves; residuals show the root mean square, not the bound.
            unit *= USUAL * 2**0.5
        leak = replace(leak, gradients={name: value / top.scale for name, value in leak.gradients.items()})
        sweep = Sweep(network, leak, top.features, errors, loose, unit)
        sweep.run()
        layers, names = tuple(sweep.reports), _deepest(network, sweep, max(GOOD, LOOSE * unit))
        if not names:
            return Peeled(nothing, nothing, top.labels, layers, "", lost, lost, torch.inf, "failed", sweep.reason)
        name = "+".join(names)
        found = _in_front(leak, network, sweep, names, steps, seed)
        good = found.misfit < FOUND * _error_of(sweep, names)
        images = torch.where(good.view(-1, *[1] * (nothing.ndim - 1)), found.images, nothing)
        claimed = torch.where(good, found.error, lost)
        whole = bool(good.all())
        residual = _residual(leak, network, images, top.labels) if whole else torch.inf
    status: Status = "unique" if whole and residual < EXPLAINS and top.status == "unique" else "found"
    reason = "" if status == "unique" else top.reason or f"images and labels miss the gradient by {residual:.0e}"
    if status == "unique" and DEVIATIONS * float(claimed.max()) > SURE:
        status, reason = "found", f"an image is known to {float(claimed.max()):.0e} only"
    if not whole:
        status = "found" if bool(good.any()) else "failed"
        reason = f"{int((~good).sum())} of {len(good)} samples' maps were not matched at '{name}'"
    return Peeled(images, found.images, top.labels, layers, name, found.misfit, claimed, residual, status, reason)


def _last_layer(
    leak: Leak,
    prior: str | LabelPrior,
    noise: float | None,
    scale: float | None,
    precision: str | Precision | None,
) -> BatchLabels:
    """Return the labels and features of every sample."""
    return recover_batch(
        leak.weight_gradient,
        leak.weight,
        batch_size=leak.batch_size,
        prior=prior,
        bias=leak.bias,
        bias_gradient=leak.bias_gradient,
        nonnegative=any(isinstance(module, nn.ReLU) for module in leak.model.modules()),
        noise=noise,
        scale=scale,
        precision=precision,
    )


def errors_of(leak: Leak, top: BatchLabels, unit: float) -> tuple[Tensor, Tensor]:
    """Return every sample's error p − y (B, C) as the client has rounded it, and how far that may be off, relatively.

    The features tell p and so the exact errors. They also divide the gradient into the errors that the client computed,
    whose digits are fewer where p is nearly y. Of the two values of an entry the surer one counts more.
    """
    logits = top.features @ leak.weight.double().T + (0 if leak.bias is None else leak.bias.double())
    p, count, steep = logits.softmax(dim=1), len(top), logits.abs().amax(dim=1, keepdim=True)
    exact, doubt = p - top.labels, unit * p * (ROUNDED + (1 - p) * steep)
    gradient, inverse = leak.weight_gradient.double() / top.scale, torch.linalg.pinv(top.features)
    told = count * (gradient @ inverse).T
    left = gradient - told.T @ top.features / count
    freedom = max(1, gradient.shape[1] - count)
    missed = (left.square().sum(dim=1) / freedom).sqrt() + unit * gradient.square().mean(dim=1).sqrt()
    loose = count * inverse.norm(dim=0)[:, None] * missed
    share = doubt.square() / (doubt.square() + loose.square()).clamp(min=TINY)
    errors = torch.lerp(exact, told, share)
    # A longer feature with a shorter error gives the same gradient: p alone, rounded as it is, tells them apart.
    apart = (doubt / (1 + steep)).norm(dim=1)
    return errors, ((share.sqrt() * loose).norm(dim=1).square() + apart.square()).sqrt() / errors.norm(dim=1)


def _in_front(leak: Leak, network: Network, sweep: Sweep, names: list[str], steps: int, seed: int) -> Fronts:
    """Return the images in front of known values, which may be the images themselves."""
    shape = network.inputs.shape
    if names == [network.inputs.name]:
        known = sweep.values[names[0]]
        size = known.value.flatten(1).square().mean(dim=1).sqrt()
        return Fronts(known.value, torch.zeros_like(size), known.error * size)
    maps = [sweep.values[name].value.flatten(1) for name in names]
    # A batch of one has the gradients of the layers in front to itself.
    front = sweep.unsolved() if leak.batch_size == 1 else []
    sizes = [one.norm(dim=1).mean().clamp(min=TINY) for one in maps]

    def run_by(own: Network) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
            values = own.values_at([*names, *(name for name, _ in front)], inputs)
            given = [values[name].flatten(1) / size.to(inputs) for name, size in zip(names, sizes, strict=True)]
            missed = inputs.new_zeros(len(inputs))
            for name, one in front:
                missed = missed + one.missed(values[name])
            return torch.cat(given, dim=1), missed

        return run

    wanted = torch.cat([one / size for one, size in zip(maps, sizes, strict=True)], dim=1)
    single = Network(leak.model, shape, torch.float32)
    return matched(run_by(single), run_by(network), wanted, shape, steps, seed)


def _error_of(sweep: Sweep, names: list[str]) -> Tensor:
    """Return how far some known values may be off, relatively (B,)."""
    return torch.stack([sweep.values[name].error for name in names]).amax(dim=0)


def _deepest(network: Network, sweep: Sweep, most: float) -> list[str]:
    """Return the steps known to `most` that the inputs reach first, if their values are enough to tell the images."""
    wanted = math.prod(network.inputs.shape)
    worst = torch.stack([known.error.max() for known in sweep.values.values()]).tolist()
    good = {name for name, error in zip(sweep.values, worst, strict=True) if error < most}
    open_, passed, found = [network.inputs.name], set[str](), list[str]()
    while open_:
        name = open_.pop(0)
        if name in passed:
            continue
        passed.add(name)
        if name in good:
            found.append(name)
        else:
            open_ += network.steps[name].users
    told = sum((sweep.values[name].value != 0).flatten(1).sum(dim=1) for name in found)
    enough = torch.is_tensor(told) and int(told.min()) >= wanted
    return found if found == [network.inputs.name] or enough else []


def _residual(leak: Leak, network: Network, images: Tensor, labels: Tensor) -> float:
    """Return the relative error of the gradient that images and labels give, in float64."""
    labels = labels.clamp(min=0)
    network.model.requires_grad_(True)
    with torch.enable_grad():
        given = observe(network.model, images, labels / labels.sum(dim=1, keepdim=True), head=leak.head).gradients
    network.model.requires_grad_(False)
    sent = {name: gradient.double() for name, gradient in leak.gradients.items()}
    missed = [(given[name] - gradient).square().sum() for name, gradient in sent.items()]
    whole = [gradient.square().sum() for gradient in sent.values()]
    both = torch.stack([*missed, *whole]).tolist()
    return float((sum(both[: len(missed)]) / sum(both[len(missed) :])) ** 0.5)


def _why_not(case: Case) -> str:
    if case.subject.kind != "images":
        return "it restores images"
    return case.no_label or case.reach.refused


def _attack(case: Case) -> Answer:
    found = peel(
        case.rescaled(),
        prior=case.prior,
        noise=case.noise,
        steps=STEPS * case.steps,
        seed=case.seed,
        precision=case.precision,
    )
    answer = found.answers[0]
    if found.status == "failed":
        return replace(answer, status="partial" if found.layers else "failed", inputs=None)
    return case.with_one_factor(answer)


ATTACK = Attack(
    "layers peeled off",
    page="peeling",
    finds=("labels", "inputs"),
    needs="all gradients of a convolutional network, and a batch that is small beside its last maps",
    refused=_why_not,
    run=_attack,
    remedy="batches of more samples than the last map's channels hold; pooling by maxima; noise",
    memory=lambda case: case.reach.bytes,
    stretch=lambda case: case.reach.seconds,
)
