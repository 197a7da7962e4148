"""A single sample behind a defence: the closest product is found, and no part of it is guaranteed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gradleak import data, defenses, metrics, observe
from gradleak.images import invert_units
from gradleak.images.inversion.one_sample import closest, smoothed
from gradleak.leak import Leak


def product(seed: int, units: int = 40, values: int = 60) -> tuple[Tensor, Tensor, Tensor]:
    """Return a sample, and the gradients of the weights and biases of a first layer that saw it alone."""
    generator = torch.Generator().manual_seed(seed)
    sample = torch.rand(values, generator=generator).double()
    errors = torch.randn(units, generator=generator).double()
    return sample, errors[:, None] * sample, errors


def photo(defense: str, seed: int) -> tuple[Tensor, Leak]:
    """Return a photo (1, 3, 32, 32), and what its client sends behind a defence."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 128), nn.ReLU(), nn.Linear(128, 10))
    photos = data.load("photos", "test")
    image, label = photos.images[7 * seed : 7 * seed + 1], photos.labels[7 * seed : 7 * seed + 1]
    leak = observe(model, image, label)
    changed = defenses.named(defense, generator=torch.Generator().manual_seed(seed))(leak.gradients)
    return image, replace(leak, gradients=changed)


def test_behind_noise_it_is_the_first_singular_vector_with_the_stated_deviation() -> None:
    ratios = []
    for seed in range(20):
        sample, weight, bias = product(seed)
        generator = torch.Generator().manual_seed(100 + seed)
        noisy = [part + 0.05 * torch.randn(part.shape, generator=generator).double() for part in (weight, bias)]
        found = closest(*noisy)
        rows = torch.cat([noisy[0], noisy[1][:, None]], dim=1)
        vector = torch.linalg.svd(rows).Vh[0]
        torch.testing.assert_close(found.values, vector[:-1] / vector[-1], rtol=1e-6, atol=1e-6)
        errors = found.values - sample
        # The errors that all values share come from the bias, and are no white noise.
        errors -= (errors @ sample) / (sample @ sample) * sample
        ratios.append(float(errors.square().mean().sqrt()) / found.deviation)
    assert 0.9 < sum(ratios) / len(ratios) < 1.1


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_entries_that_pruning_leaves_are_exact_and_the_others_are_small(share: float) -> None:
    for seed in range(5):
        sample, weight, bias = product(seed)
        sample[:10] *= 0.02
        weight[:, :10] *= 0.02
        pruned = defenses.named(f"prune/{share}")({"weight": weight, "bias": bias})
        found = closest(pruned["weight"], pruned["bias"])
        missing = found.bounds.isfinite()
        assert bool((pruned["weight"][:, missing] == 0).all())
        assert (found.values - sample)[~missing].abs().max() < 1e-9
        assert bool((sample[missing] <= found.bounds[missing]).all())
        filled = found.filled(torch.zeros_like(sample), torch.ones_like(sample))
        assert bool(((filled - sample)[missing].abs() <= found.bounds[missing] / 2).all())
    assert missing.any()


def test_zeros_of_rounded_entries_count_as_values() -> None:
    for seed in range(5):
        sample, weight, bias = product(seed)
        rounded = defenses.named("quantize/6")({"weight": weight, "bias": bias})
        assert bool((rounded["weight"] == 0).any())
        found = closest(rounded["weight"], rounded["bias"])
        assert not found.bounds.isfinite().any()
        assert (found.values - sample).abs().mean() < 0.02


@pytest.mark.parametrize(("defense", "gain"), [("gaussian/0.001", 10), ("gaussian/0.01", 10), ("prune/0.9", 5)])
def test_an_image_behind_a_defence_is_better_than_the_median_of_all_units(defense: str, gain: float) -> None:
    gains, similar = [], []
    for seed in range(6):
        image, leak = photo(defense, seed)
        weight, bias = (leak.gradients[f"1.{name}"].double() for name in ("weight", "bias"))
        quotients = (weight / bias[:, None])[bias != 0]
        median = quotients.nan_to_num().median(dim=0).values.reshape(image.shape)
        noise = float(defense.partition("/")[2]) if defense.startswith("gaussian") else None
        found = invert_units(leak, noise=noise, box=(0.0, 1.0))
        assert found.status == "partial"
        assert not found.guaranteed.any()
        gains.append(float(metrics.psnr(found.inputs, image) - metrics.psnr(median, image)))
        similar.append(float(metrics.ssim(found.inputs, image)))
    assert sum(gains) / len(gains) > gain
    assert sum(similar) / len(similar) > 0.7


def test_the_stated_error_holds_without_smoothing() -> None:
    for seed in range(6):
        image, leak = photo("gaussian/0.001", seed)
        found = invert_units(leak, noise=0.001)
        assert float((found.inputs - image).norm() / image.norm()) <= found.claimed < math.inf


def test_noise_is_smoothed_and_clean_images_stay_as_they_are() -> None:
    photos = data.load("photos", "test").images[::60].double()
    assert torch.equal(smoothed(photos, 1e-3, 0.0, 1.0), photos)
    noisy = photos + 0.1 * torch.randn(photos.shape, generator=torch.Generator().manual_seed(0)).double()
    better = smoothed(noisy, 0.1, 0.0, 1.0)
    assert float((metrics.psnr(better, photos) - metrics.psnr(noisy, photos)).mean()) > 3
