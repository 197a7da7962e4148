"""Define defences: functions that change a client's gradients before the client sends them.

`named` returns a defence by its name in `KINDS` and its level, such as "prune/0.2".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.errors import InputError, unknown
from gradleak.leak import Defense, Gradients


@dataclass(frozen=True)
class Each:
    """A defence that applies `change` to each tensor independently, so the last layer may be studied alone."""

    change: Callable[[Tensor], Tensor]

    def __call__(self, gradients: Gradients) -> Gradients:
        """Return the gradients that are sent."""
        return {name: self.change(value) for name, value in gradients.items()}


@checked_arguments()
def gaussian(std: float, generator: torch.Generator) -> Each:
    """Add normal noise with standard deviation `std` to every entry."""
    _at_least("std", std, 0)
    return Each(lambda value: value + std * torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value))


@checked_arguments()
def laplace(std: float, generator: torch.Generator) -> Each:
    """Add Laplace noise with standard deviation `std`, that is with scale std / √2, to every entry."""
    _at_least("std", std, 0)

    def change(value: Tensor) -> Tensor:
        uniform = torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs()).clamp(min=-700)
        return value + (std / math.sqrt(2) * noise).to(value)

    return Each(change)


@checked_arguments()
def clip(norm: float) -> Defense:
    """Scale all gradients by one factor so that their joint norm is at most `norm`."""
    _at_least("norm", norm, 0)

    def change(gradients: Gradients) -> Gradients:
        size = _size(gradients)
        factor = min(1.0, norm / size) if size else 1.0
        return {name: value * factor for name, value in gradients.items()}

    return change


@checked_arguments()
def clip_share(share: float) -> Defense:
    """Clip all gradients to a `share` of their joint norm."""
    _at_least("share", share, 0)

    return lambda gradients: clip(share * _size(gradients))(gradients)


@checked_arguments()
def dp(norm: float, std: float, generator: torch.Generator) -> Defense:
    """Clip all gradients to a joint `norm`, and add normal noise with standard deviation `std` (abadi2016)."""
    clipped, noisy = clip(norm), gaussian(std, generator)
    return lambda gradients: noisy(clipped(gradients))


@checked_arguments()
def dp_tensors(norm: float, std: float, generator: torch.Generator) -> Each:
    """Clip each tensor to `norm` independently, and add normal noise with standard deviation `std`."""
    noisy = gaussian(std, generator)
    return Each(lambda value: noisy.change(clip(norm)({"": value})[""]))


# Noise multipliers below this limit are no noise in float64.
NONE = 1e-150


@checked_arguments()
def release_epsilon(noise_multiplier: float, *, delta: float = 1e-5) -> float:
    """Return the exact privacy ε of a single release by the Gaussian mechanism (balle2018).

    The sums of gradients of two neighbouring batches differ by one clipped gradient. With the noise multiplier z, the
    standard deviation of the noise divided by the clipping norm, ε solves

        Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) = δ

    Amplification by subsampling is not included. Without noise ε is infinite.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    _at_least("noise_multiplier", noise_multiplier, 0)
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1; got {delta:g}")
    if noise_multiplier < NONE:
        return math.inf
    half, z = 0.5 / noise_multiplier, noise_multiplier

    def beyond(epsilon: float) -> float:
        inside = float(log_ndtr(half - epsilon * z))
        outside = epsilon + float(log_ndtr(-half - epsilon * z))
        # The second term never exceeds the first. Rounding may reverse this where ε is huge: there is no privacy then.
        return math.exp(inside) * -math.expm1(min(0.0, outside - inside)) - delta

    if beyond(0.0) <= 0:
        return 0.0
    upper = 1.0
    while beyond(upper) > 0:
        upper *= 2
    return float(brentq(beyond, 0.0, upper, rtol=1e-9))


@checked_arguments()
def grad_drop(share: float) -> Each:
    """Set the given share of each tensor's entries to zero, the smallest first (aji2017, as in dang2021)."""
    pruned = prune(share)
    return Each(lambda value: pruned({"": value})[""])


@checked_arguments()
def average(clients: Sequence[Gradients]) -> Gradients:
    """Return the mean of the clients' gradients, which is all that a server sees under secure aggregation."""
    if not clients:
        raise InputError("average needs at least one client")
    for client in clients[1:]:
        _check_alike(clients[0], client)
    return {name: torch.stack([client[name] for client in clients]).mean(dim=0) for name in clients[0]}


@checked_arguments()
def prune(share: float) -> Defense:
    """Set the given share of all entries to zero, the smallest first."""
    if not 0 <= share <= 1:
        raise InputError(f"share must lie in 0 … 1; got {share:g}")

    def change(gradients: Gradients) -> Gradients:
        sizes = torch.cat([value.abs().flatten() for value in gradients.values()])
        count = round(share * len(sizes))
        if count == 0:
            return gradients
        limit = sizes.kthvalue(count).values
        return {name: value.where(value.abs() > limit, 0) for name, value in gradients.items()}

    return change


@checked_arguments()
def prune_tensors(share: float) -> Defense:
    """Set whole tensors to zero, as wainakh2021's code does for its compression.

    That code pairs the i-th tensor with the i-th row of the last layer's weight gradient. Of the rows'
    absolute sums, take the given share that is smallest, and let t be the largest of these. A tensor is set to zero if
    its row's absolute sum is at most t and its total is smaller than t in size. The last layer's weight must be the
    second-to-last tensor.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie in 0 … 1 (0 excluded); got {share:g}")

    def change(gradients: Gradients) -> Gradients:
        sums = gradients[list(gradients)[-2]].sum(dim=1).abs()
        limit = sums.sort().values[max(0, int(share * len(sums)) - 1)]
        small = [index < len(sums) and bool(sums[index] <= limit) for index in range(len(gradients))]
        return {
            name: torch.zeros_like(value) if low and value.sum().abs() < limit else value
            for (name, value), low in zip(gradients.items(), small, strict=True)
        }

    return change


def sign() -> Each:
    """Replace every entry by its sign times the mean absolute entry of its tensor."""
    return Each(lambda value: value.sign() * value.abs().mean())


@checked_arguments()
def quantize(bits: int) -> Each:
    """Round every entry to one of 2^bits − 1 evenly spaced levels, symmetric up to its tensor's largest entry."""
    if bits < 2:
        raise InputError(f"bits must be at least 2; got {bits}")
    levels = 2 ** (bits - 1) - 1

    def change(value: Tensor) -> Tensor:
        step = value.abs().max() / levels
        return torch.round(value / step) * step if step > 0 else value

    return Each(change)


def half() -> Each:
    """Convert every entry to float16."""
    return Each(lambda value: value.half())


def bfloat16() -> Each:
    """Round every entry to bfloat16, and keep the type of its tensor."""
    return Each(lambda value: value.bfloat16().to(value))


@dataclass(frozen=True)
class Kind:
    """A defence that can be chosen by name.

    Attributes:
        level: The meaning of its level, "" if it has none.
        shown: Its description in tables, with a format field for the level.
        make: Makes the defence from the level and a generator.
        noisy: Whether it draws random numbers from the generator.
    """

    level: str
    shown: str
    make: Callable[[float, torch.Generator], Defense]
    noisy: bool = False


def _gaussian_of_variance(variance: float, generator: torch.Generator) -> Each:
    _at_least("variance", variance, 0)
    return gaussian(math.sqrt(variance), generator)


def _whole_bits(bits: float, _: torch.Generator) -> Each:
    if bits != int(bits):
        raise InputError(f"bits must be a whole number; got {bits:g}")
    return quantize(int(bits))


# The variance of the noise that "dp" adds after clipping, as in wainakh2021.
DP_VARIANCE = 0.1
KINDS: dict[str, Kind] = {
    "none": Kind("", "none", lambda _level, _: Each(lambda value: value)),
    "gaussian": Kind("standard deviation", "noise of deviation {:g}", gaussian, noisy=True),
    "gaussian-variance": Kind("variance", "noise variance {:g}", _gaussian_of_variance, noisy=True),
    "laplace": Kind("standard deviation", "Laplace noise of deviation {:g}", laplace, noisy=True),
    "clip": Kind("norm", "clip norm {:g}", lambda level, _: clip(level)),
    "clip-share": Kind("share of the norm", "clip {:.0%} of the norm", lambda level, _: clip_share(level)),
    "dp": Kind(
        f"norm (and noise of variance {DP_VARIANCE})",
        f"dp norm {{:g}}, variance {DP_VARIANCE}",
        lambda level, draws: dp(level, math.sqrt(DP_VARIANCE), draws),
        noisy=True,
    ),
    "dp-tensors": Kind(
        "norm of every tensor (and noise of a tenth of it)",
        "dp norm {:g} a tensor, deviation of a tenth",
        lambda level, draws: dp_tensors(level, level / 10, draws),
        noisy=True,
    ),
    "prune-tensors": Kind("share of the rows", "prune tensors {:.0%}", lambda level, _: prune_tensors(level)),
    "prune": Kind("share of all entries", "prune {:.0%} of all", lambda level, _: prune(level)),
    "grad-drop": Kind("share of a tensor's entries", "grad-drop {:.0%} per tensor", lambda level, _: grad_drop(level)),
    "sign": Kind("", "sign", lambda _level, _: sign()),
    "quantize": Kind("bits", "quantize {:.0f} bits", _whole_bits),
    "half": Kind("", "float16 numbers", lambda _level, _: half()),
    "bfloat16": Kind("", "bfloat16 numbers", lambda _level, _: bfloat16()),
}


@checked_arguments()
def named(text: str, *, generator: torch.Generator | None = None) -> Defense:
    """Return a defence by its name in `KINDS` and its level, or by its name alone if it has no level ("sign").

    Noise is drawn from `generator`, which only noisy defences need.

    Examples:
        >>> defense = named("prune/0.5")
        >>> defense({"weight": torch.tensor([1.0, -3.0, 2.0, 0.5])})
        {'weight': tensor([ 0., -3.,  2.,  0.])}
    """
    kind, level = _read(text)
    if kind.noisy and generator is None:
        raise InputError(f"defence '{text}' draws noise: pass a generator")
    return kind.make(level, generator or torch.Generator())


@checked_arguments()
def shown(text: str) -> str:
    """Return the description of the defence `text` for tables."""
    kind, level = _read(text)
    return kind.shown.format(level)


def _read(text: str) -> tuple[Kind, float]:
    name, _, number = text.partition("/")
    if name not in KINDS:
        raise unknown("defence", name, KINDS)
    kind = KINDS[name]
    try:
        level = float(number or ("nan" if kind.level else 0))
    except ValueError:
        level = math.nan
    if not math.isfinite(level):
        form = f"{name}/level, its {kind.level} a number" if kind.level else f"{name} alone, or {name}/0"
        raise InputError(f"defence '{text}' is not right: it is written {form}")
    return kind, level


@checked_arguments()
def utility(clean: Gradients, sent: Gradients) -> float:
    """Return the cosine between the clean gradient and the gradient that was sent, a measure of utility.

    The value is NaN if either gradient is zero.
    """
    _check_alike(clean, sent)
    product = sum(float((clean[name].double() * sent[name].double()).sum()) for name in clean)
    sizes = _size(clean) * _size(sent)
    return product / sizes if sizes else math.nan


def _size(gradients: Gradients) -> float:
    """Return the joint norm of all gradients."""
    return math.sqrt(sum(float(value.double().square().sum()) for value in gradients.values()))


def _check_alike(first: Gradients, other: Gradients) -> None:
    """Refuse gradients of different parameters."""
    names = [name for name in first if name not in other or other[name].shape != first[name].shape]
    if differing := [*names, *(set(other) - set(first))]:
        raise InputError(f"the gradients must be of the same parameters; they differ in '{differing[0]}'")


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise InputError(f"{name} must be at least {least:g}; got {value:g}")
