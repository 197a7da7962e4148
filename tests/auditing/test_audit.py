"""An audit finds what is there to be found, says what it cannot, and is the same for the same seed."""

from __future__ import annotations

import functools
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
from gradleak.book import PATIENCE
from gradleak.cases import Attack, Case
from gradleak.catalogue import ATTACKS
from gradleak.errors import InputError
from gradleak.models.language import build_language_model
from tests.auditing.networks import Net, mlp, vectors
from tests.images.peeling.test_attack import small


@functools.cache
def audited() -> Report:
    inputs, targets = vectors()
    return gradleak.audit(
        mlp().double(), inputs.double(), targets, batch_sizes=(1, 4), defenses=("none", "clip/0.01", "gaussian/0.1")
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


@pytest.mark.parametrize("bias", [True, False])
def test_a_single_output_and_its_sigmoid_are_audited_alike(bias: bool) -> None:
    inputs, targets = vectors(classes=2)
    for seed in range(4):
        torch.manual_seed(seed)
        layers = nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 1, bias=bias)
        first, second = (
            gradleak.audit(nn.Sequential(*layers, *end).double(), inputs.double(), targets, batch_sizes=(1, 2), steps=1)
            for end in ([], [nn.Sigmoid()])
        )
        assert first.model_copy(update={"seconds": 0}) == second.model_copy(update={"seconds": 0})
        assert sum("single output z" in note for note in second.notes) == 1
        assert second.facts["runs backwards"] == "a chain of Linear layers"
        certain = [one for one in second.findings if one.certificate in ("unique", "exact")]
        assert {one.attack for one in certain} >= {"unit by unit", "linear layers backwards"}
        assert all(one.measures[name] == 1 for one in certain for name in one.measures)
        assert bias == any(one.measures.get("labels") == 1 for one in certain)


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
    model = models.build("lenet", image_size=16)
    images = F.avg_pool2d(photos.images[300:320], 2)
    defended = ("none", "gaussian/0.001")
    report = gradleak.audit(model, images, photos.labels[300:320], batch_sizes=(1,), defenses=defended, steps=8)
    assert report.worst("image-psnr") > 60
    assert report.worst("image-ssim") > 0.99
    drawn = {name: {one.attack for one in report.pictures if one.defense == name} for name in defended}
    assert drawn["none"] == {"convolutions backwards"}, "where the image is guaranteed, no search is needed"
    assert "not needed" in why(report, "gradient matching", defense="none")
    assert "gradient matching" in drawn["gaussian/0.001"]
    (matched,) = (one for one in report.findings if one.attack == "gradient matching")
    assert "labels" not in matched.measures, "labels that it was given are not its answer"
    assert "6 steps to a loss of" in matched.sentence
    assert "; with 2 it was" in matched.sentence
    assert (matched.measures["image-gain"] <= 0) == ("no better than a flat image" in matched.sentence)
    hidden = gradleak.audit(model, images[:1], photos.labels[300:301], batch_sizes=(1,), images=False, memory=0.001)
    assert not hidden.pictures
    assert "GB are to be had" in why(hidden, "convolutions backwards")


def test_a_parallel_network_is_audited_as_the_network_that_it_runs() -> None:
    inputs, targets = vectors()
    first, second = (gradleak.audit(own, inputs, targets, batch_sizes=(1,)) for own in (mlp(), nn.DataParallel(mlp())))
    assert first.model_copy(update={"seconds": 0}) == second.model_copy(update={"seconds": 0})


def test_the_scale_of_pixels_is_two_numbers_or_tensors() -> None:
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(48, 4)), 2 * torch.rand(2, 3, 4, 4) - 1
    low, span = torch.full((3,), -1.0), torch.full((3,), 2.0)
    first, second, third = (
        gradleak.audit(model, images, torch.arange(2), batch_sizes=(1,), steps=2, pixels=pixels)
        for pixels in ((low, span), (-1, 2.0), (-1, 4.0))
    )
    assert first.worst("image-psnr") == second.worst("image-psnr") < third.worst("image-psnr")
    with pytest.raises(InputError, match="every span above 0"):
        gradleak.audit(model, images, torch.arange(2), batch_sizes=(1,), pixels=(0.0, 0.0))


def test_sentences_are_read_and_noise_on_every_row_of_the_embedding_hides_the_words() -> None:
    torch.manual_seed(0)
    model = build_language_model("gru", pieces=300, width=32)
    tokens, targets = sequences.batch_of([[5, 6, 7], [8, 9], [5, 11, 12, 13]])
    report = gradleak.audit(model.double(), tokens, targets, batch_sizes=(3,), defenses=("none", "gaussian/0.01"))
    assert report.worst("sentences", defense="none") == 1
    assert report.worst("words", defense="none") == 1
    assert "sentences" in report.measured
    rows = next(one for one in report.findings if (one.attack, one.defense) == ("embedding rows", "gaussian/0.01"))
    assert (rows.certificate, rows.measures) == ("failed", {})
    assert why(report, "gradient matching") == "tokens cannot be moved by small steps"


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
    inputs, targets = vectors(108)
    report = gradleak.audit(mlp(), inputs[:12], targets[:12], batch_sizes=(4,), auxiliary=(inputs[12:], targets[12:]))
    assert {"LLG+", "posterior attack", "learned counts"} <= {one.attack for one in report.findings}


def test_a_residual_network_is_peeled_behind_clipping_too() -> None:
    inputs, labels = torch.randn(3, 3, 8, 8, generator=torch.Generator().manual_seed(2)), torch.arange(3)
    report = gradleak.audit(
        small(width=48, seed=1), inputs, labels, batch_sizes=(2,), defenses=("none", "clip/0.1"), steps=1
    )
    told = [one for one in report.findings if one.attack == "layers peeled off"]
    assert [one.defense for one in told if one.measures["inputs"] == 1] == ["none", "clip/0.1"]
    assert all(one.certificate == "unique" and one.measures["labels"] == 1 for one in told)
    assert any("inputs of 5 layers follow, down to '0'" in line for line in report.proofs)


# ---------------------------------------------------------------------------------------------------- time and memory
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


def test_a_search_ends_with_the_minutes() -> None:
    noise = ("gaussian/0.01",)
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), defenses=noise, minutes=0.02, steps=10**8)
    (found,) = (one for one in report.findings if one.attack == "gradient matching")
    assert found.cut


def test_what_an_attack_needs_is_known_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, lambda _: pytest.fail("it would not fit"))
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), memory=2)
    assert why(report, "slow") == "needs about 3 GB, and 2 GB are to be had"


def test_every_audit_computes_float32_in_ieee_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    run, seen = running._attack, []
    monkeypatch.setattr(running, "_attack", lambda *arguments: (seen.append(devices.precision()), run(*arguments))[1])
    before = devices.precision()
    assert before != "IEEE", "torch's own setting for convolutions is TF32"
    model, (inputs, targets) = mlp(), vectors()
    gradleak.audit(model, inputs, targets, batch_sizes=(1,), minutes=0.1, images=False)
    gradleak.audit_update(gradleak.observe(model, inputs[:1], targets[:1]), minutes=0.1, steps=1, images=False)
    assert seen == ["IEEE", "IEEE"]
    assert devices.precision() == before


def test_soft_labels_are_smoothed_ones_where_nothing_is_said() -> None:
    inputs, targets = vectors()
    report = gradleak.audit(
        mlp().double(), inputs.double(), augment.smooth(targets, 12, 0.2).double(), batch_sizes=(1, 3)
    )
    assert report.settings["labels"] == "smoothing"
    assert report.worst("labels", batch_size=3) == 1


# ---------------------------------------------------------------------------------------------------- modes and silence
def normed() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 12)).double()


def test_both_modes_of_a_client_are_audited_where_they_differ() -> None:
    inputs, targets = vectors()
    model = normed()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    report = gradleak.audit(model, inputs.double(), targets, batch_sizes=(1, 4), steps=2)
    assert [(place.batch_size, place.mode) for place in report.cases] == [(1, "eval"), (4, "eval"), (4, "train")]
    assert report.settings["mode"] == "eval and train"
    (note,) = [line for line in report.notes if "train mode" in line]
    assert "batch of 1, train mode, nothing is tried" in note
    assert "BatchNorm1d fails" in note
    assert report.broken == []
    assert report.worst("labels", mode="train") == 1, "labels and features as the client's dropout left them"
    assert report.worst("features", mode="train") == 1
    assert [row["mode"] for row in report.table()] == ["eval mode", "eval mode", "train mode"]
    assert model.training
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    own = gradleak.audit(model, inputs.double(), targets, batch_sizes=(4,), steps=2, mode="train")
    assert [place.mode for place in own.cases] == ["train"]
    assert own.facts["batch norms"] == "1, with the statistics of each batch"
    assert gradleak.audit(mlp(), inputs, targets, batch_sizes=(1,), steps=2).settings["mode"] == "eval, as in train"


def test_trained_statistics_are_matched_in_eval_mode_only() -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
    images = torch.rand(4, 3, 12, 12)
    nn.Sequential(*body)(images)
    report = gradleak.audit(nn.Sequential(*body, nn.Linear(800, 4)), images, torch.arange(4), batch_sizes=(2,), steps=2)
    attack = "matching with batch norm's statistics"
    assert report.broken == []
    assert report.facts["batch norms"] == "1, trained"
    assert [one.mode for one in report.findings if one.attack == attack] == ["eval"]
    assert "statistics of each batch" in why(report, attack, mode="train")


def test_what_is_zero_or_frozen_is_said_first() -> None:
    inputs, targets = vectors()
    model = mlp()
    nn.init.zeros_(model[-1].weight)
    model[0].bias.requires_grad_(False)
    notes = gradleak.audit(model, inputs, targets, batch_sizes=(1,), steps=2).notes
    assert notes[0].startswith("the gradient of '0.weight'")
    assert "the last layer's weight is zero" in notes[0]
    assert notes[1] == "'0.bias' is frozen and not in the update"
    state = mlp().state_dict()
    nothing = gradleak.Leak.from_update(mlp(), state, state, rate=0.1, batch_size=1, input_shape=(40,))
    with pytest.raises(InputError, match="the update is zero"):
        gradleak.audit_update(nothing)
    dead = mlp()
    with torch.no_grad():
        dead[0].bias[:-1] -= 1e3
    (line,) = [
        line for line in gradleak.audit(dead, inputs, targets, batch_sizes=(1,), steps=2).notes if "idle" in line
    ]
    assert line.startswith(f"{len(dead[0].bias) - 1} of {len(dead[0].bias)} units of '0.weight' were idle")


def test_outputs_that_hold_logits_are_attacked_like_logits() -> None:
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(4 * 36, 10))
    model = Net(lambda net, x: SimpleNamespace(logits=net.body(x)), body=body)
    report = gradleak.audit(model, torch.rand(4, 3, 8, 8), torch.arange(4), batch_sizes=(2,), steps=2)
    assert report.broken == []
    assert "gradient matching" in {one.attack for one in report.findings}


def test_matching_finds_all_records_of_a_table() -> None:
    """No unit shows a single record; second order ends the search."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 64), nn.GELU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 3))
    records, classes = torch.randn(40, 12), torch.arange(40) % 3
    report = gradleak.audit(model, records, classes, batch_sizes=(6,), images=False, steps=400)
    found = {finding.attack: finding.measures.get("inputs") for finding in report.findings}
    assert found["gradient matching"] == 1.0 > found["unit by unit"]
    assert "6 of 6 inputs exactly" in str(report)
