"""What a client does to its gradient before it sends it: each a function from gradients to gradients.

`named("prune/0.2")` makes one from a text: a name of KINDS and a level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradleak.errors import InputError, unknown
from gradleak.leak import Defense, Gradients


@dataclass(frozen=True)
class Each:
    """A defence that treats every tensor by itself: the last layer's gradient is sent as if there were no other."""

    change: Callable[[Tensor], Tensor]

    def __call__(self, gradients: Gradients) -> Gradients:
        """Return the gradients as they are sent."""
        return {name: self.change(value) for name, value in gradients.items()}


def gaussian(std: float, generator: torch.Generator) -> Each:
    """Add normal noise of this standard deviation to every entry."""
    _at_least("std", std, 0)
    return Each(lambda value: value + std * torch.randn(value.shape, generator=generator, dtype=value.dtype).to(value))


def laplace(std: float, generator: torch.Generator) -> Each:
    """Add Laplace noise of this standard deviation, hence of scale std / √2, to every entry."""
    _at_least("std", std, 0)

    def change(value: Tensor) -> Tensor:
        uniform = torch.rand(value.shape, generator=generator, dtype=torch.float64) - 0.5
        noise = -uniform.sign() * torch.log1p(-2 * uniform.abs()).clamp(min=-700)
        return value + (std / math.sqrt(2) * noise).to(value)

    return Each(change)


def clip(norm: float) -> Defense:
    """Scale all gradients together so that their norm is at most this."""
    _at_least("norm", norm, 0)

    def change(gradients: Gradients) -> Gradients:
        size = math.sqrt(sum(float(value.double().square().sum()) for value in gradients.values()))
        factor = min(1.0, norm / size) if size else 1.0
        return {name: value * factor for name, value in gradients.items()}

    return change


def clip_share(share: float) -> Defense:
    """Scale all gradients together to this share of their norm."""
    _at_least("share", share, 0)

    def change(gradients: Gradients) -> Gradients:
        size = sum(float(value.double().square().sum()) for value in gradients.values()) ** 0.5
        return clip(share * size)(gradients)

    return change


def dp(norm: float, std: float, generator: torch.Generator) -> Defense:
    """Clip all gradients together to this norm, and add normal noise of this standard deviation (abadi2016)."""
    clipped, noisy = clip(norm), gaussian(std, generator)
    return lambda gradients: noisy(clipped(gradients))


def dp_tensors(norm: float, std: float, generator: torch.Generator) -> Each:
    """Clip every tensor by itself to this norm, and add normal noise of this standard deviation."""
    noisy = gaussian(std, generator)
    return Each(lambda value: noisy.change(clip(norm)({"": value})[""]))


def dp_epsilon(noise_multiplier: float, *, share: float = 1.0, steps: int = 1, delta: float = 1e-5) -> float | None:
    """Return the privacy ε that noise of `noise_multiplier` times the clipping norm buys, by Opacus' RDP accountant.

    `share` of all samples is drawn at each of `steps`. None where Opacus is not installed.
    """
    try:
        from opacus.accountants.rdp import RDPAccountant
    except ImportError:
        return None
    _at_least("noise_multiplier", noise_multiplier, 0)
    accountant = RDPAccountant()
    accountant.history = [(noise_multiplier, share, steps)]
    return float(accountant.get_epsilon(delta))


def release_epsilon(noise_multiplier: float, *, delta: float = 1e-5) -> float:
    """Return the privacy ε of one release with noise of `noise_multiplier` times the clipping norm (balle2018).

    Exact for the Gaussian mechanism, whether one clipped gradient is in the sum or not: the ε at which
    Φ(1/2z − εz) − e^ε Φ(−1/2z − εz) = δ. No subsampling is counted, and no second release; infinite without noise.
    """
    from scipy.optimize import brentq
    from scipy.special import log_ndtr

    _at_least("noise_multiplier", noise_multiplier, 0)
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1; got {delta:g}")
    if noise_multiplier == 0:
        return math.inf
    half, z = 0.5 / noise_multiplier, noise_multiplier

    def beyond(epsilon: float) -> float:
        inside = float(log_ndtr(half - epsilon * z))
        outside = epsilon + float(log_ndtr(-half - epsilon * z))
        # Where the first is next to one, so that the second is lost in its rounding, both are next to no privacy.
        return math.exp(inside) * -math.expm1(min(0.0, outside - inside)) - delta

    if beyond(0.0) <= 0:
        return 0.0
    most = 1.0
    while beyond(most) > 0:
        most *= 2
    return float(brentq(beyond, 0.0, most, rtol=1e-9))


def grad_drop(share: float) -> Each:
    """Set the smallest entries of every tensor, this share of it, to zero (aji2017, as dang2021 has it)."""
    pruned = prune(share)
    return Each(lambda value: pruned({"": value})[""])


def average(clients: Sequence[Gradients]) -> Gradients:
    """Return what a server sees that learns the clients' mean alone, as secure aggregation has it."""
    if not clients:
        raise InputError("there are no clients to average over")
    return {name: torch.stack([one[name] for one in clients]).mean(dim=0) for name in clients[0]}


def prune(share: float) -> Defense:
    """Set the smallest entries, this share of all, to zero."""
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


def prune_tensors(share: float) -> Defense:
    """Set whole tensors to zero, as wainakh2021's code does for its compression.

    It goes through tensors and the last layer's rows side by side: the i-th tensor is set to zero where the i-th row's
    sum is among this share of the smallest, and the tensor's own sum smaller than the largest of these.
    """
    if not 0 < share <= 1:
        raise InputError(f"share must lie in 0 … 1 and not be 0; got {share:g}")

    def change(gradients: Gradients) -> Gradients:
        sums = gradients[list(gradients)[-2]].sum(dim=1).abs()
        limit = sums.sort().values[max(0, int(share * len(sums)) - 1)]
        small = [i < len(sums) and bool(sums[i] <= limit) for i in range(len(gradients))]
        return {
            name: torch.zeros_like(value) if low and value.sum().abs() < limit else value
            for (name, value), low in zip(gradients.items(), small, strict=True)
        }

    return change


def sign() -> Each:
    """Send the sign of every entry, times the mean size of its tensor's entries."""
    return Each(lambda value: value.sign() * value.abs().mean())


def quantize(bits: int) -> Each:
    """Round every entry to 2^bits − 1 levels, evenly spaced and symmetric, of its tensor's largest entry."""
    if bits < 2:
        raise InputError(f"bits must be at least 2; got {bits}")
    levels = 2 ** (bits - 1) - 1

    def change(value: Tensor) -> Tensor:
        step = value.abs().max() / levels
        return torch.round(value / step) * step if step > 0 else value

    return Each(change)


def half() -> Each:
    """Send numbers of 16 bits."""
    return Each(lambda value: value.half())


@dataclass(frozen=True)
class Kind:
    """A defence that a text can name: what its level is (nothing, where it has none), how it is shown, how it is made.

    `noisy` ones draw from a generator.
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


# The variance of the noise that comes with clipping under "dp", as wainakh2021 has it.
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
    "grad-drop": Kind("share of a tensor's entries", "grad-drop {:.0%} a tensor", lambda level, _: grad_drop(level)),
    "sign": Kind("", "sign", lambda _level, _: sign()),
    "quantize": Kind("bits", "quantize {:.0f} bits", _whole_bits),
    "half": Kind("", "float16 numbers", lambda _level, _: half()),
}


def named(text: str, *, generator: torch.Generator | None = None) -> Defense:
    """Return the defence that "name/level" says, one of KINDS; what has no level is named alone ("sign").

    `generator`: what noise is drawn from.
    """
    kind, level = _read(text)
    if kind.noisy and generator is None:
        raise InputError(f"defence '{text}' draws noise: pass a generator")
    return kind.make(level, generator or torch.Generator())


def shown(text: str) -> str:
    """Return how a table names the defence that a text says."""
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
        wanted = f"{name}/level, its {kind.level} a number" if kind.level else f"{name} alone, or {name}/0"
        raise InputError(f"defence '{text}' is not right: it is written {wanted}")
    return kind, level


def utility(clean: Gradients, sent: Gradients) -> float:
    """Return what is left for training: the cosine between the clean gradient and the one that was sent."""
    product = sum(float((clean[name].double() * sent[name].double()).sum()) for name in clean)
    sizes = [math.sqrt(sum(float(v.double().square().sum()) for v in one.values())) for one in (clean, sent)]
    return product / (sizes[0] * sizes[1]) if all(sizes) else math.nan


def _at_least(name: str, value: float, least: float) -> None:
    if not value >= least:
        raise InputError(f"{name} must be at least {least:g}; got {value:g}")
