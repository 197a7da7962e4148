"""Defences: each does what its name says, to all gradients together or to each tensor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from gradleak import defenses, models
from gradleak.errors import InputError
from gradleak.leak import Gradients, observe


def gradients(dtype: torch.dtype = torch.float32) -> Gradients:
    generator = torch.Generator().manual_seed(0)
    return {
        "a": torch.randn(40, 50, generator=generator, dtype=dtype),
        "b": 0.1 * torch.randn(300, generator=generator, dtype=dtype),
    }


@pytest.mark.parametrize("make", [defenses.gaussian, defenses.laplace])
def test_noise_has_the_deviation_asked_for(make: object) -> None:
    clean = {"a": torch.zeros(400, 500)}
    noise = make(0.3, torch.Generator().manual_seed(1))(clean)["a"]  # type: ignore[operator]
    assert float(noise.std()) == pytest.approx(0.3, rel=0.01)
    assert abs(float(noise.mean())) < 0.003
    kurtosis = float(noise.pow(4).mean() / noise.square().mean().square())
    assert kurtosis == pytest.approx(3.0 if make is defenses.gaussian else 6.0, rel=0.1)
    again = make(0.3, torch.Generator().manual_seed(1))(clean)["a"]  # type: ignore[operator]
    assert torch.equal(noise, again)
    with pytest.raises(InputError, match="std must be at least 0; got -1"):
        make(-1, torch.Generator())  # type: ignore[operator]


def test_clipping_bounds_the_norm_of_all_together() -> None:
    clean = gradients()
    size = math.sqrt(sum(float(value.square().sum()) for value in clean.values()))
    sent = defenses.clip(size / 2)(clean)
    assert torch.allclose(sent["a"], clean["a"] / 2)
    assert torch.allclose(sent["b"], clean["b"] / 2)
    assert torch.equal(defenses.clip(2 * size)(clean)["a"], clean["a"])
    assert torch.equal(defenses.clip(1.0)({"a": torch.zeros(3)})["a"], torch.zeros(3))
    assert defenses.utility(clean, sent) == pytest.approx(1)
    assert defenses.utility(clean, {name: -value for name, value in clean.items()}) == pytest.approx(-1)
    assert math.isnan(defenses.utility(clean, {name: 0 * value for name, value in clean.items()}))


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9, 1.0])
def test_pruning_zeroes_the_smallest_share_of_all_entries(share: float) -> None:
    clean = gradients()
    sent = defenses.prune(share)(clean)
    flat, kept = (torch.cat([value.flatten() for value in one.values()]) for one in (clean, sent))
    assert int((kept == 0).sum()) == round(share * len(flat))
    assert torch.equal(kept[kept != 0], flat[kept != 0])
    if 0 < share < 1:
        assert float(flat[kept == 0].abs().max()) <= float(kept[kept != 0].abs().min())
        assert float((sent["b"] == 0).double().mean()) > float((sent["a"] == 0).double().mean()), "global, not each"
    with pytest.raises(InputError, match=r"share must lie in 0 … 1; got 1\.5"):
        defenses.prune(1.5)


def test_sign_and_quantisation() -> None:
    clean = gradients()
    sent = defenses.sign()(clean)
    assert torch.equal(sent["a"].sign(), clean["a"].sign())
    assert len(sent["a"].abs().unique()) == 1
    for bits in (2, 4, 8):
        rounded = defenses.quantize(bits)(clean)["a"]
        assert len(rounded.unique()) <= 2**bits - 1
        step = float(clean["a"].abs().max()) / (2 ** (bits - 1) - 1)
        assert float((rounded - clean["a"]).abs().max()) <= step / 2 * (1 + 1e-5)
    assert torch.equal(defenses.quantize(4)({"a": torch.zeros(3)})["a"], torch.zeros(3))
    with pytest.raises(InputError, match="bits must be at least 2"):
        defenses.quantize(1)


def test_an_average_over_clients_is_a_larger_batch() -> None:
    model = models.build("small-cnn", seed=0)
    inputs, labels = torch.rand(6, 3, 32, 32), torch.tensor([0, 1, 2, 3, 4, 4])
    clients = [observe(model, inputs[n : n + 2], labels[n : n + 2]).gradients for n in (0, 2, 4)]
    whole = observe(model, inputs, labels).gradients
    for name, value in defenses.average(clients).items():
        torch.testing.assert_close(value, whole[name], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("none", lambda _: lambda sent: sent),
        ("none/0", lambda _: lambda sent: sent),
        ("gaussian/0.3", lambda draws: defenses.gaussian(0.3, draws)),
        ("gaussian-variance/0.25", lambda draws: defenses.gaussian(0.5, draws)),
        ("laplace/0.3", lambda draws: defenses.laplace(0.3, draws)),
        ("clip/1", lambda _: defenses.clip(1)),
        ("clip-share/0.5", lambda _: lambda sent: {name: value / 2 for name, value in sent.items()}),
        ("dp/1", lambda draws: lambda sent: defenses.gaussian(math.sqrt(0.1), draws)(defenses.clip(1)(sent))),
        ("prune/0.2", lambda _: defenses.prune(0.2)),
        (
            "grad-drop/0.2",
            lambda _: lambda sent: {name: defenses.prune(0.2)({name: sent[name]})[name] for name in sent},
        ),
        ("sign", lambda _: defenses.sign()),
        ("quantize/4", lambda _: defenses.quantize(4)),
        ("half", lambda _: lambda sent: {name: value.half() for name, value in sent.items()}),
        ("bfloat16", lambda _: lambda sent: {name: value.bfloat16().to(value) for name, value in sent.items()}),
    ],
)
def test_a_text_names_a_defence(text: str, same: Any) -> None:
    clean = gradients()
    sent = defenses.named(text, generator=torch.Generator().manual_seed(1))(clean)
    expected = same(torch.Generator().manual_seed(1))(clean)
    for name in clean:
        assert sent[name].dtype == expected[name].dtype
        assert torch.allclose(sent[name], expected[name], rtol=1e-6)
    assert text.partition("/")[0] in defenses.KINDS
    assert defenses.shown(text)


def test_the_privacy_of_one_release() -> None:
    # Known points of the analytic Gaussian mechanism, and the limit 1/2z² of little noise.
    assert defenses.release_epsilon(1.0) == pytest.approx(4.377, abs=1e-3)
    assert defenses.release_epsilon(1e-4) == pytest.approx(5e7, rel=2e-3)
    assert defenses.release_epsilon(0) == float("inf")
    assert defenses.release_epsilon(1e6) == 0
    # Its δ, where both terms are plain numbers.
    from scipy.stats import norm

    z, epsilon = 2.0, defenses.release_epsilon(2.0, delta=1e-3)
    left = norm.cdf(0.5 / z - epsilon * z) - math.exp(epsilon) * norm.cdf(-0.5 / z - epsilon * z)
    assert left == pytest.approx(1e-3, rel=1e-6)
    with pytest.raises(InputError, match="delta"):
        defenses.release_epsilon(1.0, delta=0)


def test_whole_tensors_are_set_to_zero_beside_the_smallest_rows() -> None:
    rows = torch.tensor([[0.1, 0.1], [1.0, 1.0], [-3.0, 1.0], [2.0, 2.0]])  # sums of 0.2, 2, 2 and 4 in size
    gradients = {"a": torch.tensor([0.05]), "b": torch.tensor([1.0]), "weight": rows, "bias": torch.ones(4)}
    sent = defenses.named("prune-tensors/0.25")(gradients)
    assert [name for name, value in sent.items() if not value.any()] == ["a"]
    sent = defenses.named("prune-tensors/0.75")(gradients)
    assert [name for name, value in sent.items() if not value.any()] == ["a", "b"], "the weight's sum is too large"
    with pytest.raises(InputError, match="share"):
        defenses.named("prune-tensors/0")


def test_every_tensor_is_clipped_by_itself_and_noise_goes_with_the_norm() -> None:
    gradients = {"large": torch.full((100, 100), 1.0), "small": torch.full((100, 100), 1e-4)}
    sent = defenses.named("dp-tensors/10", generator=torch.Generator().manual_seed(0))(gradients)
    assert float(sent["large"].mean()) == pytest.approx(0.1, abs=0.05)
    assert float(sent["small"].mean()) == pytest.approx(0, abs=0.05)
    assert float(sent["small"].std()) == pytest.approx(1, rel=0.05)
