"""An audit finds what is there to be found, says what it cannot, and is the same for the same seed."""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gradleak
from gradleak import augment, data, devices, models, sequences
from gradleak.answers import Answer
from gradleak.auditing import Report, running
from gradleak.auditing.reach import Reach, reach_of
from gradleak.auditing.subject import proofs, subject_of
from gradleak.book import PATIENCE
from gradleak.cases import Attack, Case
from gradleak.catalogue import ATTACKS
from gradleak.errors import GradleakError, InputError
from gradleak.losses import CrossEntropy, Focal
from gradleak.models.language import build_language_model
from tests.images.peeling.test_attack import small


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(inspect.unwrap(gradleak.audit).__kwdefaults__, "steps", 5)


def mlp(inputs: int = 40, classes: int = 12) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, classes))


def vectors(count: int = 12, inputs: int = 40, classes: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, inputs, generator=generator), torch.arange(count) % classes


@functools.cache
def audited(dtype: torch.dtype = torch.float64) -> Report:
    inputs, targets = vectors()
    return gradleak.audit(
        mlp().to(dtype), inputs.to(dtype), targets, batch_sizes=(1, 4), defenses=("none", "clip/0.01", "gaussian/0.1")
    )


def why(report: Report, attack: str, **where: object) -> str:
    own = [one for one in report.not_tried if one.attack == attack]
    return next(one.why for one in own if all(getattr(one, name) == value for name, value in where.items()))


def test_a_network_of_linear_layers_gives_its_whole_batch() -> None:
    report = audited()
    for size in (1, 4):
        for measure in ("labels", "features", "inputs"):
            assert report.worst(measure, defense="none", batch_size=size) == 1
    certain = [one for one in report.findings if one.certificate == "unique" and one.defense == "none"]
    assert {one.batch_size for one in certain} == {1, 4}
    assert all("no other answer fits" in one.sentence for one in certain)


def test_clipping_hides_nothing_and_noise_hides_the_inputs() -> None:
    report = audited()
    assert report.worst("inputs", defense="clip/0.01", batch_size=4) == 1
    assert report.worst("inputs", defense="gaussian/0.1") == 0
    whole = next(one for one in report.findings if one.attack == "linear layers backwards" and one.defense == "none")
    assert whole.stops.startswith("Stopped here by gaussian/0.1 (cosine ")
    assert "clip" not in whole.stops


def test_the_counts_are_said() -> None:
    told = " ".join(audited().proofs)
    assert "B = 4 of C = 12: labels and features are determined" in told
    assert "every layer's inputs follow" in told
    leak = gradleak.observe(mlp(), *vectors(40))
    large = proofs(leak, subject_of(leak, "vectors", False), reach_of(leak), "onehot", CrossEntropy())
    assert any("fewer equations than unknowns" in one for one in large)


def test_costs_are_those_of_the_defence() -> None:
    costs = {(one.defense, one.batch_size): one for one in audited().costs}
    assert costs["none", 4].cosine == pytest.approx(1)
    assert costs["clip/0.01", 4].cosine == pytest.approx(1)
    assert (costs["gaussian/0.1", 4].cosine or 1) < 0.5
    model, (inputs, targets) = mlp().double(), vectors()
    order = torch.randperm(12, generator=torch.Generator().manual_seed(4))[:4]
    before = F.cross_entropy(model(inputs[order].double()), targets[order])
    assert costs["none", 4].loss_before == pytest.approx(float(before.detach()))
    assert costs["none", 4].loss_after < costs["none", 4].loss_before
    assert costs["clip/0.01", 4].loss_after_undefended == costs["none", 4].loss_after


def test_every_attack_is_a_finding_or_was_not_tried() -> None:
    report = audited()
    told = [(one.defense, one.batch_size, one.attack) for one in (*report.findings, *report.not_tried)]
    assert len(told) == len(set(told)) == len(ATTACKS) * 6


def test_the_same_seed_gives_the_same_report() -> None:
    inputs, targets = vectors()
    first, second, third = (
        gradleak.audit(mlp(), inputs, targets, batch_sizes=(1,), defenses=("gaussian/0.01",), seed=seed)
        for seed in (3, 3, 4)
    )
    assert first.model_copy(update={"seconds": 0}) == second.model_copy(update={"seconds": 0})
    assert first.costs != third.costs


def test_a_chain_of_convolutions_shows_its_image() -> None:
    photos = data.load("photos", "test")
    model = models.build("lenet")
    report = gradleak.audit(model, photos.images[300:320], photos.labels[300:320], batch_sizes=(1,))
    assert report.worst("image-psnr") > 60
    assert report.worst("image-ssim") > 0.99
    assert {one.attack for one in report.pictures} == {"convolutions backwards", "gradient matching"}
    (matched,) = (one for one in report.findings if one.attack == "gradient matching")
    assert "labels" not in matched.measures, "labels that it was given are not its answer"
    hidden = gradleak.audit(
        model, photos.images[300:301], photos.labels[300:301], batch_sizes=(1,), images=False, memory=0.01
    )
    assert not hidden.pictures
    assert "GB, and 0.01 GB are to be had" in why(hidden, "convolutions backwards")


def test_sentences_are_read() -> None:
    torch.manual_seed(0)
    model = build_language_model("gru", pieces=30, width=32)
    tokens, targets = sequences.batch_of([[5, 6, 7], [8, 9], [5, 11, 12, 13]])
    report = gradleak.audit(model.double(), tokens, targets, batch_sizes=(3,), defenses=("none", "gaussian/0.01"))
    assert report.worst("sentences", defense="none") == 1
    assert report.worst("words", defense="none") == 1
    assert "sentences" in report.measured
    assert why(report, "gradient matching") == "tokens cannot be moved by small steps"


def test_other_losses_are_not_taken_for_cross_entropy() -> None:
    inputs, targets = vectors()
    report = gradleak.audit(mlp(), inputs, targets, batch_sizes=(1,), loss=Focal())
    assert "this is Focal" in why(report, "label of one sample")
    assert report.worst("inputs") == 1, "the bias attack asks no loss"


def test_a_deep_network_is_told_from_a_chain() -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    model = nn.Sequential(*body, nn.Linear(8, 10))
    inputs = torch.rand(4, 3, 12, 12)
    report = gradleak.audit(model, inputs, torch.arange(4), batch_sizes=(1, 2))
    assert "BatchNorm2d" in report.facts["runs backwards"]
    assert "never trained" in report.facts["batch norms"]
    assert "never trained" in why(report, "matching with batch norm's statistics")
    model.train()(torch.rand(8, 3, 12, 12))
    report = gradleak.audit(model, inputs, torch.arange(4), batch_sizes=(1,))
    assert model.training
    assert any(one.attack == "matching with batch norm's statistics" for one in report.findings)


def test_auxiliary_samples_open_further_attacks() -> None:
    inputs, targets = vectors(36)
    report = gradleak.audit(mlp(), inputs[:12], targets[:12], batch_sizes=(4,), auxiliary=(inputs[12:], targets[12:]))
    assert {"LLG+", "posterior attack"} <= {one.attack for one in report.findings}


def test_a_residual_network_is_peeled_behind_clipping_too() -> None:
    inputs, labels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(3)
    report = gradleak.audit(
        small(width=48, seed=1), inputs, labels, batch_sizes=(2,), defenses=("none", "clip/0.1"), steps=1
    )
    told = [one for one in report.findings if one.attack == "layers peeled off"]
    assert [one.defense for one in told if one.measures["inputs"] == 1] == ["none", "clip/0.1"]
    assert all(one.certificate == "unique" and one.measures["labels"] == 1 for one in told)
    assert any("inputs of 5 layers follow, down to '0'" in line for line in report.proofs)


@pytest.mark.parametrize(
    ("name", "size", "reached", "why"),
    [
        # Smooth activations need no masks, and one layer has the equations.
        ("lenet", 1, ("body.4",), "'body.2': 48 equations for 64 unknowns in each channel"),
        ("resnet20", 2, (), "128 output positions (B = 2), but only 64 channels"),
        ("mlp", 1, (), "the network has no convolutions"),
    ],
)
def test_the_counts_refuse_peeling_before_it_is_tried(name: str, size: int, reached: tuple[str, ...], why: str) -> None:
    model = models.build(name) if name != "mlp" else nn.Sequential(nn.Flatten(), *mlp(3 * 32 * 32))
    reach = reach_of(gradleak.observe(model, torch.zeros(size, 3, 32, 32), torch.arange(size)))
    assert reach.layers == reached
    assert why in reach.refused


def test_what_peeling_needs_is_said_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    reach = reach_of(gradleak.observe(models.build("resnet20"), torch.zeros(1, 3, 32, 32), torch.tensor([0])))
    # One sample's 64 positions: eigenvectors of a matrix of 64 · 64 a side.
    assert reach.opening == 4096
    assert reach.bytes > 5 * 8 * 4096**2
    assert reach.seconds > 1
    assert Reach((), "", 0, 256).seconds == 0
    model = small(width=48, seed=1)
    monkeypatch.setattr(Reach, "seconds", 1e6)
    report = gradleak.audit(model, torch.randn(1, 3, 8, 8), torch.tensor([1]), batch_sizes=(1,), steps=1)
    assert why(report, "layers peeled off").startswith("needs about 1000000 s at a stretch, and ")
    report = gradleak.audit(model, torch.randn(1, 3, 8, 8), torch.tensor([1]), batch_sizes=(1,), steps=1, memory=0.006)
    assert why(report, "layers peeled off").endswith("GB, and 0.006 GB are to be had")


# ------------------------------------------------------------------------------------------- time, memory, interruption
def replaced(monkeypatch: pytest.MonkeyPatch, run: Callable[[Case], Answer]) -> None:
    """Let there be one attack, this one."""
    one = Attack(
        "slow", "noise", ("labels",), "nothing", lambda case: "", run, "nothing", memory=lambda case: 3 * 2**30
    )
    monkeypatch.setattr(running, "ATTACKS", (one, *ATTACKS))


def test_an_attack_that_takes_too_long_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "LEAST_SECONDS", 0.2)

    # Only the alarm hears a clock: before the attack begins, a busy machine could use up the audit's time.
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=lambda: 0.0))

    def run(case: Case) -> Answer:
        time.sleep(PATIENCE)
        return Answer()

    replaced(monkeypatch, run)
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), minutes=0.05)
    assert why(report, "slow").startswith("stopped after ")


def test_memory_is_looked_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(case: Case) -> Answer:
        raise AssertionError("it would not fit")

    replaced(monkeypatch, run)
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), memory=2)
    assert why(report, "slow") == "needs about 3 GB, and 2 GB are to be had"
    with pytest.raises(InputError, match="gradients alone need about"):
        gradleak.audit(mlp(), *vectors(), memory=1e-5)


# ------------------------------------------------------------------------------------------------------ what was sent
def test_a_client_s_update_is_audited_with_and_without_its_batch() -> None:
    model, (inputs, targets) = mlp().double(), vectors()
    inputs = inputs.double()
    client = mlp().double()
    optimiser = torch.optim.SGD(client.parameters(), lr=0.01)
    F.cross_entropy(client(inputs[:3]), targets[:3]).backward()
    optimiser.step()
    seen = gradleak.Leak.from_update(
        model, model.state_dict(), client.state_dict(), rate=0.01, batch_size=3, input_shape=(40,)
    )
    blind = gradleak.audit_update(seen)
    assert not blind.measured
    assert any("of classes 0, 1, 2" in one.sentence for one in blind.findings)
    known = gradleak.audit_update(seen, inputs=inputs[:3], targets=targets[:3])
    assert known.worst("labels") == 1
    assert known.worst("inputs") == 1
    with pytest.raises(InputError, match="what shape one input has"):
        gradleak.audit_update(
            gradleak.Leak.from_update(model, model.state_dict(), client.state_dict(), rate=1, batch_size=3)
        )


def test_every_audit_computes_float32_in_ieee_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = running._run, []

    def watched(*arguments: object) -> object:
        seen.append(devices.precision())
        return run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(running, "_run", watched)
    before = devices.precision()
    assert before != "IEEE", "torch's own setting for convolutions is TF32"
    model, (inputs, targets) = mlp(), vectors()
    gradleak.audit(model, inputs, targets, batch_sizes=(1,), minutes=0.1, images=False)
    gradleak.audit_update(gradleak.observe(model, inputs[:1], targets[:1]), minutes=0.1, steps=1, images=False)
    assert seen == ["IEEE", "IEEE"]
    assert devices.precision() == before


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"model": mlp().half()}, "float16"),
        ({"model": mlp().requires_grad_(False)}, "needs a gradient"),
        ({"model": nn.Flatten()}, "needs a gradient"),
        ({"model": "lenet"}, "nn.Module"),
        ({"inputs": torch.zeros(0, 40)}, "must not be empty"),
        ({"inputs": torch.full((12, 40), math.nan)}, "NaN"),
        ({"inputs": torch.zeros(12, 40, dtype=torch.complex64)}, "complex"),
        ({"inputs": torch.zeros(12, 40, 3, dtype=torch.long)}, "tokens"),
        ({"inputs": torch.zeros(12, 41)}, "does not take inputs"),
        ({"targets": torch.arange(11)}, "12 inputs but 11 targets"),
        ({"targets": torch.full((12,), 99)}, "class indices must lie in 0 … 11"),
        ({"batch_sizes": ()}, "batch sizes"),
        ({"batch_sizes": (0,)}, "batch sizes"),
        ({"batch_sizes": (13,)}, "a batch of 13 cannot be drawn from 12"),
        ({"defenses": ("clap/1",)}, "did you mean 'clip'"),
        ({"defenses": ("clip",)}, "clip/level"),
        ({"labels": "hot"}, "labels are"),
        ({"minutes": 0}, "minutes"),
        ({"memory": -1}, "memory"),
    ],
)
def test_what_makes_no_sense_is_one_clear_line(changed: dict[str, object], told: str) -> None:
    inputs, targets = vectors()
    given: dict[str, object] = {"model": mlp(), "inputs": inputs, "targets": targets} | changed
    with pytest.raises(GradleakError, match=told) as caught:
        gradleak.audit(**given)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_soft_labels_are_smoothed_ones_where_nothing_is_said() -> None:
    inputs, targets = vectors()
    report = gradleak.audit(
        mlp().double(), inputs.double(), augment.smooth(targets, 12, 0.2).double(), batch_sizes=(1, 3)
    )
    assert report.settings["labels"] == "smoothing"
    assert report.worst("labels", batch_size=3) == 1
