"""The attack: each part by itself, many batches and seeds as one program, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data
from gradleak.errors import InputError
from gradleak.images import GradInversion, project_batches, restore_batches
from gradleak.images.gradinversion.attack import Target, known_of
from gradleak.images.gradinversion.consensus import registered
from gradleak.images.gradinversion.learned import PROJECTION, Denoised
from gradleak.images.gradinversion.statistics import observe_statistics, stacked
from gradleak.leak import Leak, observe
from tests.images.matching.attacked import small

NOTHING = GradInversion(
    gradient=1.0, variation=0.0, square=0.0, statistics=0.0, consistency=0.0, group="none", noise=0.0, warmup=0, steps=4
)


def batches(count: int = 2, size: int = 2, classes: int = 6) -> tuple[list[Leak], Tensor, Tensor]:
    model = small(0, classes, nn.Softplus(), bias=True, norm=True).double()
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count * size, 2, 8, 8, generator=generator).double()
    labels = torch.cat([torch.randperm(classes, generator=generator)[:size].sort().values for _ in range(count)])
    parts = zip(inputs.split(size), labels.split(size), strict=True)
    return [observe(model, *part) for part in parts], inputs, labels


def plain(leak: Leak, images: Tensor, labels: Tensor, settings: GradInversion) -> tuple[Tensor, Tensor]:
    """The paper's sum for one batch, by autograd and nothing else."""
    images = images.clone().requires_grad_()
    seen: list[Tensor] = []
    norm = next(module for module in leak.model.modules() if isinstance(module, nn.BatchNorm2d))
    hook = norm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    loss = F.cross_entropy(leak.model.eval()(images), labels)
    hook.remove()
    names = list(leak.gradients)
    own = torch.autograd.grad(loss, [leak.model.get_parameter(name) for name in names], create_graph=True)
    misfits = [(a - leak.gradients[name]).norm() for a, name in zip(own, names, strict=True)]
    known = norm.running_mean, norm.running_var
    ours = seen[0].mean(dim=(0, 2, 3)), seen[0].var(dim=(0, 2, 3), unbiased=False)
    apart = sum((a - b).norm() for a, b in zip(ours, known, strict=True))
    variation = (images[..., 1:] - images[..., :-1]).norm() + (images[..., 1:, :] - images[..., :-1, :]).norm()
    value = settings.gradient * sum(misfits) + settings.classification * loss + settings.statistics * apart
    value = value + settings.variation * variation + settings.square * images.norm()
    (slope,) = torch.autograd.grad(value, [images])
    return value.detach(), slope


@pytest.mark.parametrize(
    "settings",
    [
        NOTHING,
        replace(NOTHING, variation=0.3, square=0.2),
        replace(NOTHING, statistics=0.7),
        replace(NOTHING, gradient=0.0, classification=1.0, statistics=0.5),
        replace(NOTHING, variation=0.1, square=0.1, statistics=0.3, gradient=2.0),
    ],
)
def test_every_part_is_the_formula_batch_by_batch(settings: GradInversion) -> None:
    leaks, inputs, labels = batches()
    statistics = None
    if settings.statistics:
        norm = leaks[0].model[1]
        norm.running_mean += 0.3
        leaks = [observe(leaks[0].model, *part) for part in zip(inputs.split(2), labels.split(2), strict=True)]
        one = observe_statistics(leaks[0].model, inputs)
        statistics = stacked([one._replace(means=(norm.running_mean,), variances=(norm.running_var,))] * 2)
    target = Target(leaks, known_of(leaks, labels), settings, statistics)
    images = torch.randn(2, 2, 2, 8, 8, generator=torch.Generator().manual_seed(7)).double()
    losses, slopes = target.evaluate(images.flatten(1), torch.arange(2))
    for n in range(2):
        value, slope = plain(leaks[n], images[n], labels[2 * n : 2 * n + 2], settings)
        torch.testing.assert_close(losses[n], value)
        torch.testing.assert_close(slopes[n].reshape(slope.shape), slope)


@pytest.mark.parametrize("given", [True, False])
def test_a_private_batch_has_no_loss_with_given_and_with_recovered_labels(given: bool) -> None:
    leaks, inputs, labels = batches()
    known = known_of(leaks, labels if given else "recovered")
    assert torch.equal(known.labels.argmax(dim=2).flatten(), labels)
    settings = replace(NOTHING, statistics=1.0, feature=0.0 if given else 1.0, distance="l2")
    exact = stacked([observe_statistics(leaks[0].model, part) for part in inputs.split(2)])
    assert Target(leaks, known, settings, exact).losses(inputs.reshape(2, -1), torch.arange(2)).max() < 1e-12


def test_a_client_in_train_mode_needs_the_statistics_that_it_sends() -> None:
    model = small(0, 6, nn.Softplus(), bias=True, norm=True).double()
    inputs, labels = torch.randn(2, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double(), torch.tensor([1, 4])
    leak, settings = observe(model, inputs, labels, mode="train"), replace(NOTHING, statistics=1.0, steps=2)
    with pytest.raises(InputError, match="use the statistics of each batch"):
        restore_batches(leak, labels, settings=settings)
    sent = observe_statistics(leak.model, inputs)
    assert restore_batches(leak, labels, settings=settings, statistics=sent).images.isfinite().all()


def test_seeds_of_a_group_are_held_together() -> None:
    leaks, _, labels = batches()
    alone = replace(NOTHING, steps=20)
    spread = []
    for settings in (alone, replace(alone, group="mean", consistency=0.3)):
        found = restore_batches(leaks, labels, settings=settings, seeds=3, seed=1)
        assert found.attempts.shape == (2, 3, 2, 2, 8, 8)
        assert found.losses.shape == (2, 3)
        spread.append(float(found.attempts.std(dim=1).mean()))
    assert spread[1] < 0.8 * spread[0]


def test_batches_and_seeds_as_one_program_are_each_by_itself() -> None:
    leaks, _, labels = batches()
    settings = replace(NOTHING, statistics=0.1, variation=0.1, signed=True, levels=2, steps=6)
    together = restore_batches(leaks, labels, settings=settings, seeds=2, seed=3)
    again = restore_batches(leaks, labels, settings=settings, seeds=2, seed=3)
    assert torch.equal(together.attempts, again.attempts)
    first = restore_batches(leaks[0], labels[:2], settings=settings, seeds=2, seed=3)
    torch.testing.assert_close(first.attempts[0], together.attempts[0])
    assert first.curves.diff(dim=-1).max() <= 0


# ------------------------------------------------------------------------------------------------ what seeds agree on
def photograph() -> torch.Tensor:
    return data.load("photos", "test", size=64).images[130].double()


@pytest.mark.parametrize("move", [(3, -5), (-4, 2)])
def test_a_shifted_image_is_moved_back(move: tuple[int, int]) -> None:
    image = photograph()
    shifted = image.roll(move, dims=(1, 2))
    found = registered(shifted, image)
    inner = (slice(None), slice(8, -8), slice(8, -8))
    before, after = ((side - image)[inner].square().mean() for side in (shifted, found))
    assert after < before / 20


def test_registration_never_moves_a_seed_away_from_the_mean() -> None:
    generator = torch.Generator().manual_seed(0)
    image = photograph()
    for _ in range(3):
        noise = torch.randn(image.shape, generator=generator).double()
        assert (registered(noise, image) - image).norm() <= (noise - image).norm()
    flat = torch.full_like(image, 0.5)
    assert torch.equal(registered(flat, image), flat)
    lost = torch.full_like(image, np.nan)
    assert registered(lost, image).isnan().all()


# ---------------------------------------------------------------------------------- what was learned of public images
WIDTH = 5


def test_latent_projection_finds_what_a_generator_can_make() -> None:
    leaks, _, labels = batches()
    draw = torch.Generator().manual_seed(4)
    # Images that are sums of a few.
    generator = nn.Sequential(nn.Linear(WIDTH, 128, bias=False), nn.Unflatten(1, (2, 8, 8))).double()
    nn.init.normal_(generator[0].weight, generator=draw)
    inputs = generator(torch.randn(4, WIDTH, generator=draw).double()).detach()
    leaks = [observe(leaks[0].model, *part) for part in zip(inputs.split(2), labels.split(2), strict=True)]
    settings = replace(PROJECTION, steps=150)
    found = project_batches(leaks, labels, generator=generator, width=WIDTH, settings=settings, normal=0.0, seeds=2)
    assert found.attempts.shape == (2, 2, 2, 2, 8, 8)
    assert (found.images - inputs).square().mean() < 0.05 * inputs.square().mean()


def test_a_denoisers_slope_is_what_it_takes_off() -> None:
    leaks, inputs, labels = batches()
    known = known_of(leaks, labels)
    plain = Target(leaks, known, NOTHING, None)
    places = inputs.reshape(2, -1)
    halved = nn.AvgPool2d(1, divisor_override=2)
    target = Denoised(leaks, known, NOTHING, None, halved, 0.6)
    losses, slopes = target.evaluate(places, torch.arange(2))
    others, before = plain.evaluate(places, torch.arange(2))
    torch.testing.assert_close(slopes - before, 0.6 * (places - places / 2) / places.shape[1])
    torch.testing.assert_close(losses - others, 0.3 * (places / 2).square().mean(dim=1))
