"""Recover a whole batch from the averaged gradient of a convolutional network with residual joints: peeling.

1. The last layer gives each sample's features and errors p − y, and thus the loss's gradient at the last map.
2. The last convolution's gradient gives the slopes of that map's units (`opening`).
3. With these slopes, each convolution's inputs solve a linear problem, channel by channel (`layer`). The inputs give
   the slopes of the activation below. This goes on while there are more equations than unknowns (`sweep`).
4. Behind a joint x + f(x), x is the output minus f(x) wherever the unit is active. These entries need no equations
   (`joints`).
5. The remaining layers, from the image to the deepest recovered maps, are inverted by a search. The images must give
   these maps and, for a single sample, the layers' gradients (`front`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradleak.answers import Answer
from gradleak.answers import LabelStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.cases import Attack, Case
from gradleak.errors import InputError
from gradleak.images.head import logits_of
from gradleak.images.inversion.chain import in_front
from gradleak.images.inversion.fully_connected import BOUND, LayerReport
from gradleak.images.peeling.front import Fronts, matched
from gradleak.images.peeling.joints import may_show
from gradleak.images.peeling.layer import counted, short
from gradleak.images.peeling.network import Network
from gradleak.images.peeling.opening import refused
from gradleak.images.peeling.sweep import Sweep
from gradleak.labels.priors import LabelPrior
from gradleak.labels.soft.batch.recover import BatchLabels, recover_batch
from gradleak.leak import Leak, observe
from gradleak.precision import USUAL, Precision, coarser, rounding_unit

# The client's rounding error of p in p − y, in rounding units of p.
ROUNDED = 0.5
TINY = 1e-300
# Maps with a smaller relative error can be matched.
GOOD = 1e-4
# The same limit in rounding units, for clients that compute in a coarse precision.
LOOSE = 30.0
# Images and labels explain the gradient if its relative error is smaller. A few wrong slopes near zero cause errors of
# about 1e-3, a wrong image much larger ones.
EXPLAINS = 2e-2
# A batch is "unique" only if BOUND times the estimated relative error of each image is smaller.
SURE = 1e-3
# An image is found if the misfit of its map is below this multiple of the map's error.
FOUND = 10.0
# An audit makes this many times more steps than for gradient matching, because each step is cheap.
STEPS = 5


@dataclass(frozen=True)
class Peeled:
    """A batch that was recovered from its gradient.

    Attributes:
        images: The images (B, …) in float64, NaN where they were not found.
        nearest: The images (B, …) nearest to the deepest recovered maps, even if they do not reproduce these maps
            exactly; NaN if no map was recovered.
        labels: The labels (B, C) in float64, NaN where they were not found.
        layers: A report for each layer with its inputs and their estimated relative error, from the last to the first.
        matched: The names of the network's operations whose recovered values the final search for images matched.
        misfits: The relative error of these values for each sample (B,).
        errors: An estimate of the root mean square error of each image (B,), inf if it was not found. It is no bound;
            the page on peeling measures how often and how far true errors exceed it.
        residual: The relative error of the gradient that images and labels give.
        status: "unique" if the batch explains the gradient and `relative` is at most 1e-3; "found" if some images are
            missing or less accurate; or "failed".
        reason: Why the batch is not "unique", "" if it is.
        in_front: As of an `Inversion`: the images are the inputs of the first layer.
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
    in_front: str = ""

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch; its reason includes the number of layers that were peeled."""
        followed = f"the inputs of {len(self.layers)} layers follow" if self.layers else ""
        return (
            Answer(
                self.status,
                "; ".join(part for part in (followed, self.reason) if part),
                claimed=float(self.relative.max()),
                labels=self.labels if bool(self.labels.isfinite().all()) else None,
                inputs=self.images.nan_to_num(0.0),
                in_front=self.in_front,
            ),
        )

    @property
    def relative(self) -> Tensor:
        """Four times the estimated relative error of each image (B,), inf if it was not found.

        The factor of four allows for errors of the estimate. There is no proof that it suffices.
        """
        size = self.images.flatten(1).square().mean(dim=1).sqrt()
        return (BOUND * self.errors / size).nan_to_num(nan=math.inf)


@dataclass(frozen=True)
class Count:
    """The numbers of a layer's equations and unknowns for an input channel, and why the layer cannot be peeled.

    With a stride, positions fall into independent groups; the numbers are those of the least determined group.
    """

    name: str
    equations: int
    unknowns: int
    reason: str = ""


@checked_arguments()
def counts(model: nn.Module, shape: tuple[int, ...], batch_size: int) -> tuple[Count, ...]:
    """Return the numbers of equations and unknowns from the last layer to the first, without any gradient.

    Args:
        model: The network.
        shape: The shape of one input.
        batch_size: The number of samples.
    """
    network, layer_counts, opened = Network(model, shape), list[Count](), False
    feature_step = network.source(network.steps[network.output].inputs[0]).name
    for step in reversed(network.steps.values()):
        users = [network.steps[user] for user in step.users]
        layers = [user.layer for user in users if user.layer is not None and user.name != network.output]
        if layers:
            map_shape = step.shape if len(step.shape) == 3 else (*step.shape, 1, 1)
            equations, unknowns = counted(layers, map_shape, batch_size)
            reason = "" if equations > unknowns else short(equations, unknowns)
            if reason and may_show(network, step.name):
                reason = f"{reason}, without the entries that residual sums give"
            name = "+".join(user.parameter for user in users if user.layer is not None)
            layer_counts.append(Count(name, equations, unknowns, reason))
        elif step.kind == "activation" and not opened and step.name != feature_step and len(step.shape) == 3:
            for path in network.below(step.name):
                layer = network.steps[path[-1]]
                assert layer.layer is not None
                if reason := refused(layer.layer, layer.shape, batch_size):
                    layer_counts.append(Count(layer.parameter, 0, 0, reason))
                break
        if step.kind == "other":
            layer_counts.append(Count(step.parameter or step.name, 0, 0, f"{step.says} cannot be walked back"))
        opened = opened or step.kind == "activation"
    return tuple(layer_counts)


@checked_arguments()
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
    """Recover a batch of images from a convolutional network's averaged gradient, layer by layer.

    Supported operations are convolutions, batch norm in eval mode, activations, average pooling, residual sums, Linear
    layers, and multiplication by or addition of constants. Peeling stops at any other operation, and the reason names
    it.

    Args:
        leak: The gradient, and the model that it is from.
        prior: The shape of the labels.
        noise: The standard deviation of the noise on every entry; None to estimate it.
        scale: The gradient scale; None to recover it.
        steps: The largest number of steps of the search for the images that give the deepest recovered maps.
        seed: The seed of this search's random starts.
        precision: The precision in which the client computes, if the attacker knows it.

    Examples:
        >>> _ = torch.manual_seed(0)
        >>> first, second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        >>> model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
        >>> image = torch.rand(1, 1, 4, 4)
        >>> peeled = peel(observe(model, image, torch.tensor([3])))
        >>> peeled.status, torch.allclose(peeled.images.float(), image, atol=1e-4)
        ('unique', True)
    """
    if leak.input_shape is None:
        raise InputError("peeling needs the shape of the clients' inputs, which the leak lacks")
    leak.check_one_step("peeling")
    with torch.no_grad():
        network = Network(leak.model, leak.input_shape)
        network.check(leak.model, leak.batch_size)
        rectifies = any(isinstance(module, nn.ReLU) for module in leak.model.modules())
        # The gradients of all layers were checked, and are not checked again.
        top = recover_batch(
            leak.weight_gradient, leak.weight, batch_size=leak.batch_size, bias=leak.bias,
            bias_gradient=leak.bias_gradient, prior=prior, nonnegative=rectifies, noise=noise, scale=scale,
            precision=precision,
        )  # fmt: skip
        blank = top.labels.new_full((leak.batch_size, *leak.input_shape), torch.nan)
        infinite = top.labels.new_full((leak.batch_size,), torch.inf)
        failed = Peeled(blank, blank, top.labels, (), "", infinite, infinite, torch.inf, "failed")
        if top.status == "failed":
            return replace(failed, reason=f"labels: {top.reason}")
        dtype = leak.weight_gradient.dtype
        errors, uncertainty = errors_of(leak, top, rounding_unit(precision, dtype))
        unit = rounding_unit(precision, dtype, convolutions=True)
        if coarser(precision, dtype, convolutions=True):
            # Both operands of a product are rounded independently. Residuals show root mean square errors, not bounds.
            unit *= USUAL * 2**0.5
        if top.scale != 1:
            leak = replace(leak, gradients={name: value / top.scale for name, value in leak.gradients.items()})
        sweep = Sweep(network, leak, top.features, errors, uncertainty, unit)
        sweep.run()
        layers, names = tuple(sweep.reports), _deepest(network, sweep, max(GOOD, LOOSE * unit))
        if not names:
            return replace(failed, layers=layers, reason=sweep.reason)
        name = "+".join(names)
        fronts = _in_front(leak, network, sweep, names, steps, seed)
        good = fronts.misfit < FOUND * _error_of(sweep, names)
        images = torch.where(good.view(-1, *[1] * (blank.ndim - 1)), fronts.images, blank)
        image_errors = torch.where(good, fronts.error, infinite)
        complete = bool(good.all())
        residual = _residual(leak, network, images, top.labels) if complete else torch.inf
    status: Status = "unique" if complete and residual < EXPLAINS and top.status == "unique" else "found"
    reason = "" if status == "unique" else top.reason or f"images and labels miss the gradient by {residual:.0e}"
    if not complete:
        status = "found" if bool(good.any()) else "failed"
        which = f" ({int((~good).sum())} of {len(good)} samples)" if len(good) > 1 else ""
        reason = f"the final search for the image did not reproduce the maps at '{name}'{which}"
    peeled = Peeled(
        images, fronts.images, top.labels, layers, name, fronts.misfit, image_errors, residual, status, reason,
        in_front(leak),
    )  # fmt: skip
    worst = float(peeled.relative.max())
    doubt = "" if worst <= SURE else f"an image is known to {worst:.0e} only"
    doubt = doubt or network.hides()
    return replace(peeled, status="found", reason=doubt) if status == "unique" and doubt else peeled


def errors_of(leak: Leak, top: BatchLabels, unit: float) -> tuple[Tensor, Tensor]:
    """Return every sample's error p − y (B, C) as the client rounded it, and its relative uncertainty (B,).

    Each entry is the inverse-variance weighted mean of two estimates. The features give p and thus exact errors. Least
    squares with the features and the gradient gives the errors that the client computed, rounded where p is almost y.
    """
    logits = logits_of(leak, top.features)
    p, count, largest = logits.softmax(dim=1), len(top), logits.abs().amax(dim=1, keepdim=True)
    exact, exact_error = p - top.labels, unit * p * (ROUNDED + (1 - p) * largest)
    gradient, inverse = leak.weight_gradient.double() / top.scale, torch.linalg.pinv(top.features)
    solved = count * (gradient @ inverse).T
    residual = gradient - solved.T @ top.features / count
    freedom = max(1, gradient.shape[1] - count)
    noise = (residual.square().sum(dim=1) / freedom).sqrt() + unit * gradient.square().mean(dim=1).sqrt()
    solved_error = count * inverse.norm(dim=0)[:, None] * noise
    share = exact_error.square() / (exact_error.square() + solved_error.square()).clamp(min=TINY)
    errors = torch.lerp(exact, solved, share)
    # Scaling a feature up and its error down gives the same gradient, which shows in the features' error.
    return errors, (share.sqrt() * solved_error).norm(dim=1) / errors.norm(dim=1) + top.loose / BOUND


def _in_front(leak: Leak, network: Network, sweep: Sweep, names: list[str], steps: int, seed: int) -> Fronts:
    """Return the images that give the known values, which may be the images themselves."""
    shape = network.inputs.shape
    if names == [network.inputs.name]:
        known = sweep.values[names[0]]
        size = known.value.flatten(1).square().mean(dim=1).sqrt()
        return Fronts(known.value, torch.zeros_like(size), known.error * size)
    maps = [sweep.values[name].value.flatten(1) for name in names]
    # For a single sample, the gradients of the remaining layers are not mixed with those of other samples.
    front = sweep.unsolved() if leak.batch_size == 1 else []
    sizes = [one.norm(dim=1).mean().clamp(min=TINY) for one in maps]

    def run_by(own: Network) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
        def run(inputs: Tensor) -> tuple[Tensor, Tensor]:
            values = own.values_at([*names, *(name for name, _ in front)], inputs)
            parts = [values[name].flatten(1) / size.to(inputs) for name, size in zip(names, sizes, strict=True)]
            missed = inputs.new_zeros(len(inputs))
            for name, one in front:
                missed = missed + one.missed(values[name])
            return torch.cat(parts, dim=1), missed

        return run

    targets = torch.cat([one / size for one, size in zip(maps, sizes, strict=True)], dim=1)
    single = Network(leak.model, shape, torch.float32)
    return matched(run_by(single), run_by(network), targets, _error_of(sweep, names), shape, steps, seed)


def _error_of(sweep: Sweep, names: list[str]) -> Tensor:
    """Return the largest relative error of some known values for each sample (B,)."""
    return torch.stack([sweep.values[name].error for name in names]).amax(dim=0)


def _deepest(network: Network, sweep: Sweep, most: float) -> list[str]:
    """Return the first steps after the inputs with errors below `most`, if they have enough values for the images."""
    wanted = math.prod(network.inputs.shape)
    worst = torch.stack([known.error.max() for known in sweep.values.values()]).tolist()
    good = {name for name, error in zip(sweep.values, worst, strict=True) if error < most}
    queue, visited, names = [network.inputs.name], set[str](), list[str]()
    while queue:
        name = queue.pop(0)
        if name in visited:
            continue
        visited.add(name)
        if name in good:
            names.append(name)
        else:
            queue += network.steps[name].users
    value_counts = sum((sweep.values[name].value != 0).flatten(1).sum(dim=1) for name in names)
    enough = torch.is_tensor(value_counts) and int(value_counts.min()) >= wanted
    return names if names == [network.inputs.name] or enough else []


def _residual(leak: Leak, network: Network, images: Tensor, labels: Tensor) -> float:
    """Return the relative error of the gradient that images and labels give, in float64."""
    labels = labels.clamp(min=0)
    network.model.requires_grad_(True)
    with torch.enable_grad():
        gradients = observe(network.model, images, labels / labels.sum(dim=1, keepdim=True), head=leak.head).gradients
    network.model.requires_grad_(False)
    sent = torch.cat([gradient.flatten() for gradient in leak.gradients.values()]).double()
    given = torch.cat([gradients[name].flatten() for name in leak.gradients])
    return float((given - sent).norm() / sent.norm())


def _why_not(case: Case) -> str:
    if case.subject.kind != "images":
        return "it restores images"
    return case.no_label or case.reach.refused


def _attack(case: Case) -> Answer:
    peeled = peel(
        case.rescaled(),
        prior=case.prior,
        noise=case.noise,
        steps=STEPS * case.steps,
        seed=case.seed,
        precision=case.precision,
    )
    answer = peeled.answers[0]
    if peeled.status == "failed":
        return replace(answer, status="partial" if peeled.layers else "failed", inputs=None)
    return case.with_one_factor(answer)


ATTACK = Attack(
    "layers peeled off",
    page="peeling",
    finds=("labels", "inputs"),
    needs="all gradients of a convolutional network, and a batch that is small compared with its last maps",
    refused=_why_not,
    run=_attack,
    remedy="batches with more positions in the last map than this map has channels; max pooling; noise",
    memory=lambda case: case.reach.bytes,
    stretch=lambda case: case.reach.seconds,
)
