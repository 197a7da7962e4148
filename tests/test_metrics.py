"""One contract: images in [0, 1], clipped, data range 1."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from gradleak import metrics


def pair(seed: int, count: int = 3, side: int = 9, noise: float = 0.1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(count, 3, side, side, generator=generator)
    return truth + noise * torch.randn(truth.shape, generator=generator), truth


@settings(max_examples=20)
@given(seed=st.integers(0, 999), noise=st.floats(0.001, 3))
def test_psnr_and_ssim_are_those_of_scikit_image_on_clipped_images(seed: int, noise: float) -> None:
    recovered, truth = pair(seed, noise=noise)
    clipped = recovered.clamp(0, 1).double().numpy()
    for n in range(3):
        expected = peak_signal_noise_ratio(truth[n].double().numpy(), clipped[n], data_range=1)
        assert float(metrics.psnr(recovered, truth)[n]) == pytest.approx(expected, rel=1e-9)
        similar = structural_similarity(clipped[n], truth[n].double().numpy(), data_range=1, channel_axis=0)
        assert float(metrics.ssim(recovered, truth)[n]) == pytest.approx(similar, rel=1e-9)


def test_an_image_is_graded_by_the_largest_limit_that_it_reaches() -> None:
    words = [metrics.grade(decibels) for decibels in (-math.inf, 19.9, 20.0, 40.0, 59.9, 60.0, math.inf)]
    assert words == ["not recognisable"] * 2 + ["recognisable"] + ["indistinguishable"] * 2 + ["exact"] * 2


def test_a_diverged_reconstruction_counts_as_failed() -> None:
    recovered, truth = pair(0)
    recovered[1, 0, 0, 0] = math.nan
    assert metrics.psnr(recovered, truth)[1] == -math.inf
    assert metrics.wrapped_psnr(recovered, truth)[1] == -math.inf
    assert metrics.ssim(recovered, truth)[1] == 0
    assert torch.isfinite(metrics.psnr(recovered, truth)[[0, 2]]).all()
    assert metrics.match_batch(recovered, truth).tolist() == [0, 1, 2]
    assert (metrics.psnr(truth, truth) == math.inf).all()


def test_wrapping_is_what_the_reference_does() -> None:
    recovered, truth = pair(4, noise=0.5)
    first = (recovered.double().numpy() * 255).astype(np.int64).astype(np.uint8).astype(float)
    second = (truth.double().numpy() * 255).astype(np.uint8).astype(float)
    for n in range(3):
        expected = peak_signal_noise_ratio(second[n], first[n], data_range=256)
        assert float(metrics.wrapped_psnr(recovered, truth)[n]) == pytest.approx(expected, rel=1e-9)
    white, above = torch.ones(1, 3, 8, 8), torch.full((1, 3, 8, 8), 1.004)
    assert float(metrics.psnr(above, white)[0]) == math.inf
    assert float(metrics.wrapped_psnr(above, white)[0]) < 1


def test_lpips_without_a_trunk_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recovered, truth = pair(0, side=64)
    monkeypatch.delenv("GRADLEAK_WEIGHTS", raising=False)
    assert metrics.lpips(recovered, truth).values is None
    monkeypatch.setenv("GRADLEAK_WEIGHTS", str(tmp_path))
    assert "alexnet_features.pt in $GRADLEAK_WEIGHTS" in metrics.lpips(recovered, truth).reason


@pytest.mark.skipif(
    "GRADLEAK_WEIGHTS" not in os.environ, reason="LPIPS trunks are in $GRADLEAK_WEIGHTS, which is not set"
)
@pytest.mark.parametrize(("trunk", "expected"), [("alex", (0.722, 0.138)), ("squeeze", (0.711, 0.148))])
def test_lpips_gives_the_published_distances(trunk: str, expected: tuple[float, float]) -> None:
    def picture(name: str) -> torch.Tensor:
        pixels = np.asarray(Image.open(Path(os.environ["GRADLEAK_WEIGHTS"]) / name).convert("RGB"))
        return torch.tensor(pixels).permute(2, 0, 1)[None] / 255

    reference = picture("ex_ref.png")
    for name, distance in zip(("ex_p0.png", "ex_p1.png"), expected, strict=True):
        values = metrics.lpips(picture(name), reference, trunk).values
        assert values is not None
        assert float(values[0]) == pytest.approx(distance, abs=5e-4)


@settings(max_examples=20)
@given(seed=st.integers(0, 999), count=st.integers(1, 8))
def test_a_shuffled_batch_is_put_in_order(seed: int, count: int) -> None:
    recovered, truth = pair(seed, count=count, noise=0.01)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    found = metrics.match_batch(recovered[order], truth)
    assert torch.equal(order[found], torch.arange(count))


def test_label_errors() -> None:
    truth = torch.eye(3)
    recovered = truth.clone()
    recovered[0] = torch.tensor([0.9, 0.1, 0.0])
    recovered[1, 0] = math.nan
    errors = metrics.label_error(recovered, truth)
    assert float(errors[0]) == pytest.approx(0.2)
    assert float(metrics.label_error(recovered, truth, order=2)[0]) == pytest.approx(math.sqrt(0.02))
    assert metrics.label_accuracy(recovered, truth) == pytest.approx(1 / 3)


def test_fft2d_is_blind_to_place_and_contrast_where_the_relative_distance_is_that_of_the_spectra() -> None:
    recovered, truth = pair(4)
    moved = truth.roll((3, 5), dims=(2, 3))
    assert metrics.fft2d(moved, truth).max() < 1e-12 < 0.01 < metrics.relative_l2(moved, truth).min()
    assert metrics.fft2d(truth / 2, truth).max() < 1e-12 < 0.4 < metrics.relative_l2(truth / 2, truth).min()
    ours, theirs = (torch.fft.fft2(side.double()).flatten(1) for side in (recovered.clamp(0, 1), truth))
    expected = (ours - theirs).norm(dim=1) / theirs.norm(dim=1)
    torch.testing.assert_close(metrics.relative_l2(recovered, truth), expected, rtol=1e-5, atol=0)
    for measure in (metrics.fft2d, metrics.relative_l2):
        assert measure(truth * math.nan, truth).isinf().all()


def test_registration_finds_a_shift_and_never_loses_by_it() -> None:
    recovered, truth = pair(4)
    moved = truth.roll((2, -3), dims=(2, 3))
    assert (metrics.registered_psnr(moved, truth) > 200).all()
    assert (metrics.registered_psnr(moved, truth, reach=2) < 40).all(), "three pixels are out of reach"
    assert (metrics.registered_psnr(recovered, truth) >= metrics.psnr(recovered, truth) - 1e-9).all()
    assert metrics.registered_psnr(recovered * math.nan, truth).isneginf().all()


def test_identification_by_chance_is_one_in_the_gallery() -> None:
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(50, 8, generator=generator)
    places = torch.randint(50, (5000,), generator=generator)
    guesses = metrics.identified(torch.randn(5000, 8, generator=generator), gallery, places)
    assert abs(float(guesses.double().mean()) - 1 / 50) < 4 * (1 / 50 * 49 / 50 / 5000) ** 0.5
    assert metrics.identified(3 * gallery[places], gallery, places).all()
    assert not metrics.identified(gallery[places] * math.nan, gallery, places).any()
    assert not metrics.identified(gallery[places], gallery, (places + 1) % 50).any()


def test_overlap_and_jaccard_of_counts() -> None:
    found, truth = torch.tensor([[2, 0, 2], [1, 1, 2]]), torch.tensor([[2, 1, 1], [1, 1, 2]])
    assert metrics.count_overlap(found, truth).tolist() == [0.75, 1.0]
    assert metrics.count_jaccard(found, truth).tolist() == [3 / 5, 1.0]
    assert metrics.class_jaccard(found, truth).tolist() == [2 / 3, 1.0]
