"""Soft labels from gradients: exact where the gradient knows them, and never wrong without saying so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gradleak import augment, observe
from gradleak.labels import PRIORS, Prior, SoftLabels, idlg, label_loss, recover_soft_labels
from gradleak.labels.priors import KNOWN
from gradleak.labels.soft.explanations import NO_LABEL
from gradleak.labels.soft.single import BIAS_MISSING
from gradleak.studies.shared.samples import soft_labels

DTYPES = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}


def sent(
    classes: int,
    features: int,
    spread: float,
    labels: str,
    dtype: str,
    seed: int,
    count: int = 20,
    *,
    signed: bool = False,
    bias: bool = False,
    first: Tensor | None = None,
) -> dict[str, Tensor]:
    """What clients with one sample each send, all their arithmetic in `dtype`, and the truth."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    weight, hidden = normal(classes, features), normal(count, features)
    hidden = hidden if signed else hidden.abs()
    scale = (hidden @ weight.T).std(dim=1, keepdim=True, correction=0) if classes > 1 else 1
    hidden = (hidden / scale * spread).to(DTYPES[dtype])
    weight = weight.to(DTYPES[dtype])
    offset = normal(classes).to(DTYPES[dtype]) if bias else None
    first = torch.randint(classes, (count,), generator=generator) if first is None else first
    given = soft_labels(labels, first, classes, generator).to(DTYPES[dtype])
    logits = (hidden @ weight.T + (0 if offset is None else offset)).requires_grad_()
    (delta,) = torch.autograd.grad(-(given * logits.log_softmax(dim=1)).sum(), [logits])
    return {
        "gradients": delta.unsqueeze(2) * hidden.unsqueeze(1),
        "weight": weight,
        "label": given.double(),
        "hidden": hidden.double(),
        "delta": delta,
        **({} if offset is None else {"bias": offset}),
    }


def wrong(found: SoftLabels, label: Tensor) -> Tensor:
    """Samples whose label is said to be known and is not."""
    return found.where("unique") & ~((found.labels - label).abs().sum(dim=1) < 2 * KNOWN)


@settings(max_examples=80)
@given(
    classes=st.one_of(st.integers(2, 40), st.sampled_from([100, 200])),
    features=st.integers(2, 80),
    spread=st.floats(-5, 2.5),
    labels=st.sampled_from(["smoothing", "mixup", "onehot"]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    kind=st.sampled_from(["plain", "signed", "known bias", "sent bias"]),
    factor=st.one_of(st.none(), st.floats(-3, 3)),
    seed=st.integers(0, 2**20),
)
@example(2, 2, 1.602, "onehot", "float16", "plain", None, 52)
# A fit that is accepted though it has not come to its end says nothing of the feature's size.
@example(7, 3, 1.0, "onehot", "float16", "plain", 2.0, 958)
def test_what_is_said_to_be_unique_is_right(
    classes: int, features: int, spread: float, labels: str, dtype: str, kind: str, factor: float | None, seed: int
) -> None:
    if PRIORS[labels].equations(classes) < 1 or (classes == 2 and factor is not None):
        return
    bias = kind.endswith("bias")
    made = sent(classes, features, 10**spread, labels, dtype, seed, 3, signed=kind == "signed", bias=bias)
    gradients, delta = ((10 ** (factor or 0) * made[k].double()).to(DTYPES[dtype]) for k in ("gradients", "delta"))
    if not (gradients.isfinite().all() and delta.isfinite().all()):
        return
    known: dict[str, Any] = {"prior": labels, "nonnegative": kind != "signed", "bias": made.get("bias")}
    if kind == "sent bias":
        known["bias_gradient"] = delta
    found = recover_soft_labels(gradients, made["weight"], scale=1.0 if factor is None else None, **known)
    assert not wrong(found, made["label"]).any()
    sure = found.where("unique")
    assert (found.open[sure] <= KNOWN).all()
    apart = (found.features - made["hidden"]).norm(dim=1) / made["hidden"].norm(dim=1)
    assert (apart[sure] < 0.2).all()


@pytest.mark.parametrize("labels", ["smoothing", "mixup", "onehot"])
@pytest.mark.parametrize(("dtype", "median"), [("float32", 1e-6), ("float64", 1e-12)])
@pytest.mark.parametrize(("classes", "spread"), [(4, 1.0), (10, 0.1), (1000, 5.0)])
def test_every_ordinary_sample_is_found(labels: str, dtype: str, median: float, classes: int, spread: float) -> None:
    count = 10 if classes == 1000 else 100
    made = sent(classes, 64, spread, labels, dtype, classes, count)
    found = recover_soft_labels(made["gradients"], made["weight"], prior=labels)
    errors = (found.labels - made["label"]).abs().sum(dim=1)
    assert not wrong(found, made["label"]).any()
    assert found.where("unique").double().mean() >= 0.98
    assert errors.median() < median
    assert (found.features - made["hidden"]).norm(dim=1).median() < 1e2 * median * made["hidden"].norm(dim=1).median()
    row = made["gradients"].sum(dim=2).abs().argmax(dim=1)
    truth = 1 / made["delta"].double().gather(1, row[:, None])[:, 0]
    assert ((found.scalars / truth - 1).abs().median()) < 1e3 * median
    assert found.residuals[found.where("unique")].max() < 1e-4


def test_one_column_of_candidates_holds_the_truth_where_several_labels_explain_a_gradient() -> None:
    made = sent(3, 30, 1.0, "mixup", "float64", 0, 300)
    found = recover_soft_labels(made["gradients"], made["weight"], prior="mixup")
    # One equation and one unknown: nothing is left to check even a single root with.
    assert "unique" not in found.status
    several = [n for n in range(len(found)) if len(found.candidates[n]) > 1]
    assert len(several) > 50, "one equation has several roots"
    for n in several:
        assert float((found.candidates[n] - made["label"][n]).abs().sum(dim=1).min()) < 1e-2
        assert "explain the gradient" in found.reasons[n] or "open" in found.reasons[n]
    only = [n for n in range(len(found)) if len(found.candidates[n]) == 1 and found.open[n] < KNOWN]
    assert len(only) > 50
    assert all("no equation is left" in found.reasons[n] for n in only)


def test_one_hot_probability_is_solved_by_the_sign_of_the_features() -> None:
    """Appendix B.3: prediction and label are one-hot and differ; the paper says no algorithm can tell them apart."""
    hidden = torch.eye(5, dtype=torch.float64)[[0, 1]] + 0.01
    # The true class is the one that the network holds for the least likely: there either sign gives a one-hot label.
    weight = torch.zeros(5, 5, dtype=torch.float64)
    weight[0, 0] = weight[1, 1] = 2000
    weight[3, 0] = weight[2, 1] = -2000
    label = torch.eye(5, dtype=torch.float64)[[3, 2]]
    gradients = ((hidden @ weight.T).softmax(dim=1) - label).unsqueeze(2) * hidden.unsqueeze(1)
    found = recover_soft_labels(gradients, weight, prior="onehot")
    assert found.status == ("unique", "unique")
    assert torch.equal(found.labels, label)
    both = recover_soft_labels(gradients, weight, prior="onehot", nonnegative=False)
    assert both.status == ("ambiguous", "ambiguous")
    assert [len(own) for own in both.candidates] == [2, 2]
    # iDLG's rule needs the sign as well, and has it.
    assert idlg(gradients).tolist() == [3, 2]
    assert idlg(gradients[0]).tolist() == [3]


def test_a_prior_of_three_and_a_score_of_ones_own() -> None:
    made = sent(12, 64, 2.0, "mixup", "float64", 7, 30)
    three = recover_soft_labels(made["gradients"], made["weight"], prior=Prior(3, "zero"))
    assert float((three.labels - made["label"]).abs().sum(dim=1).max()) < 1e-9

    def sparse(labels: Tensor) -> Tensor:
        """Two entries may differ from zero."""
        return labels.sort(dim=-1).values[..., :-2].square().sum(dim=-1)

    own = recover_soft_labels(made["gradients"], made["weight"], prior=sparse)
    assert not wrong(own, made["label"]).any()
    assert own.status.count("unique") >= 28
    smooth = sent(12, 64, 2.0, "smoothing", "float64", 7, 30)
    # Appendix C: the negative mass is zero on an interval, and the solver says so.
    negative = recover_soft_labels(
        smooth["gradients"], smooth["weight"], prior=lambda labels: label_loss(labels, "smoothing", "negative")
    )
    assert negative.status.count("unique") == 0


def test_a_bias_gives_the_label_in_closed_form() -> None:
    made = sent(10, 64, 2.0, "mixup", "float32", 4, 30, bias=True)
    own, weight = made["gradients"], made["weight"]
    given: dict[str, Any] = {"bias": made["bias"], "bias_gradient": made["delta"], "prior": "mixup"}
    # Without a prior nothing checks the label. Without the bias's gradient the search takes the bias into account.
    for changes, status in (({}, "unique"), ({"prior": None}, "found"), ({"bias_gradient": None}, "unique")):
        found = recover_soft_labels(own, weight, **given | changes)
        assert set(found.status) == {status}
        assert float((found.labels - made["label"]).abs().sum(dim=1).max()) < 1e-5
    for gradients, changes in ((own, {"prior": "onehot"}), (own / 2, {"bias_gradient": made["delta"] / 2})):
        wrongly = recover_soft_labels(gradients, weight, **given | changes)
        assert set(wrongly.status) == {"failed"}
        assert "the kind is wrong, or the gradient was rescaled" in wrongly.reasons[0]
    for gradient, delta in ((own.mean(dim=0), made["delta"].mean(dim=0)), (0 * own[0], 0 * made["delta"][0])):
        assert recover_soft_labels(gradient, weight, **given | {"bias_gradient": delta}).status == ("failed",)


def test_a_leak_gives_the_bias_and_its_gradient() -> None:
    torch.manual_seed(0)
    model, inputs = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 10)), torch.rand(20, 12)
    labels = augment.smooth(torch.arange(20) % 10, 10, 0.3)
    for bias_frozen in (False, True):
        model[2].bias.requires_grad_(not bias_frozen)
        for image, label in zip(inputs.split(1), labels.split(1), strict=True):
            leak = observe(model, image, label)
            found = recover_soft_labels(leak)
            assert found.status == ("unique",), found.reasons
            assert float((found.labels - label).abs().sum()) < 1e-4
            (reason,) = recover_soft_labels(leak.weight_gradient, leak.weight).reasons
            assert reason == NO_LABEL + BIAS_MISSING
    searched = recover_soft_labels(observe(model, inputs[:1], labels[:1]), solver="lbfgs")
    assert searched.status == ("found",)
    assert recover_soft_labels(observe(model, inputs[:1], labels[:1]), prior="onehot").reasons == (NO_LABEL,)


def test_known_noise_is_fitted_and_bounds_the_search() -> None:
    made = sent(10, 256, 1.0, "smoothing", "float32", 6, 50)
    generator = torch.Generator().manual_seed(0)
    size = float(made["gradients"].abs().mean())
    noise = 1e-2 * size
    noisy = made["gradients"] + noise * torch.randn(made["gradients"].shape, generator=generator)
    assert set(recover_soft_labels(noisy, made["weight"]).status) == {"failed"}
    found = recover_soft_labels(noisy, made["weight"], noise=noise)
    errors = (found.labels - made["label"]).abs().sum(dim=1)
    assert float(errors.nanmedian()) < 0.05
    assert (~errors.isnan()).double().mean() > 0.9
    estimated = recover_soft_labels(noisy, made["weight"], noise=None)
    assert float((estimated.labels - made["label"]).abs().sum(dim=1).nanmedian()) < 0.05


@pytest.mark.parametrize("solver", ["lbfgs", "pso"])
def test_the_published_searches_find_what_the_exact_solver_finds(
    solver: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = sent(10, 64, 0.5, "smoothing", "float32", 9, 6)
    found = recover_soft_labels(made["gradients"], made["weight"], solver=solver)
    exactly = recover_soft_labels(made["gradients"], made["weight"])
    assert not found.where("unique").any(), "a search that ends is no certificate"
    hits = found.where("found")
    assert hits.sum() >= 4
    assert float((found.labels - exactly.labels)[hits].abs().sum(dim=1).max()) < 1e-2
    assert float((found.scalars / exactly.scalars - 1)[hits].abs().max()) < 1e-2
    assert not list(tmp_path.iterdir()), "nothing is written"


def test_a_gradient_that_is_zero_or_a_batch_s_is_recognised_and_not_fitted() -> None:
    made = sent(10, 64, 0.5, "onehot", "float32", 2, 2)
    own = made["gradients"]
    found = recover_soft_labels(torch.stack([own[0], 0 * own[0], own.mean(dim=0)]), made["weight"], prior="onehot")
    assert found.status == ("unique", "failed", "failed")
    assert "the gradient is zero" in found.reasons[1]
    assert "not one sample's gradient" in found.reasons[2]
    assert found.labels[1:].isnan().all()
    assert found.features[1:].isnan().all()
    assert [len(labels) for labels in found.candidates] == [1, 0, 0]
    searched = recover_soft_labels(torch.stack([own[0], 0 * own[0]]), made["weight"], prior="onehot", solver="lbfgs")
    assert searched.status == ("found", "failed")


@pytest.mark.parametrize("labels", ["smoothing", "mixup", "onehot"])
@pytest.mark.parametrize(("dtype", "near"), [("float32", 1e-3), ("float64", 1e-9)])
def test_clipping_hides_nothing_of_an_ordinary_sample(labels: str, dtype: str, near: float) -> None:
    made = sent(10, 64, 2.0, labels, dtype, 1, 100)
    size = made["gradients"].flatten(1).norm(dim=1)
    factor = 0.1 / size
    clipped = made["gradients"] * factor[:, None, None]
    found = recover_soft_labels(clipped, made["weight"], prior=labels, scale=None)
    assert found.status.count("unique") >= 98
    assert not wrong(found, made["label"]).any()
    known = found.where("unique")
    assert ((found.scales / factor.double() - 1).abs()[known] < near).all()
    assert ((found.features - made["hidden"]).norm(dim=1) / made["hidden"].norm(dim=1))[known].max() < near
    told = recover_soft_labels(clipped[:1], made["weight"], prior=labels, scale=float(factor[0]))
    assert told.status == ("unique",)
    assert float((told.labels - made["label"][:1]).abs().sum()) < near
    unaware = recover_soft_labels(clipped, made["weight"], prior=labels)
    assert unaware.where("failed").double().mean() > 0.9 or labels == "onehot"


def test_where_the_equations_end_the_factor_is_open() -> None:
    three = sent(3, 64, 1.0, "smoothing", "float64", 0, 50)
    found = recover_soft_labels(three["gradients"], three["weight"], scale=None)
    assert "unique" not in found.status
    # To first order flat logits give two numbers for three unknowns.
    for dtype, spread, share in (("float32", 1e-3, 0.0), ("float64", 1e-3, 1.0), ("float64", 1e-7, 0.0)):
        flat = sent(10, 64, spread, "smoothing", dtype, 0, 50)
        found = recover_soft_labels(0.5 * flat["gradients"], flat["weight"], scale=None)
        assert found.where("unique").double().mean() == share
        assert not wrong(found, flat["label"]).any()
        known = recover_soft_labels(flat["gradients"], flat["weight"])
        assert known.where("unique").double().mean() >= (0.9 if spread > 1e-6 else 0.0)


def test_strong_noise_is_weighed_by_its_usual_errors() -> None:
    """Certificates take the largest errors; as weights of the entries these lose a third of the digits."""
    draws = torch.Generator().manual_seed(1)
    weight, hidden = torch.randn(10, 64, generator=draws) * 0.2, torch.rand(100, 64, generator=draws)
    label = augment.smooth(torch.randint(10, (100,), generator=draws), 10, torch.rand(100, generator=draws) / 2)
    own = ((hidden @ weight.T).softmax(dim=1) - label).unsqueeze(2) * hidden.unsqueeze(1)
    found = recover_soft_labels(own + 0.1 * torch.randn(own.shape, generator=draws), weight, noise=0.1)
    off = (found.labels - label).abs().sum(dim=1)
    assert float(off.median()) < 0.2
    assert not (off > found.open).any()
