"""Nothing that was not attacked looks safe: three outcomes for each target, and proofs only where they hold."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import gradleak
from gradleak import data, metrics, sequences
from gradleak.answers import Answer
from gradleak.auditing import Report
from gradleak.auditing.measuring import Truth
from gradleak.auditing.options import limits_of
from gradleak.auditing.private import private
from gradleak.auditing.reach import reach_of
from gradleak.auditing.sentences import of_outcomes
from gradleak.auditing.steady import _equal
from gradleak.auditing.subject import proofs, subject_of
from gradleak.cases import Kind
from gradleak.errors import InputError
from gradleak.images.inversion import units
from gradleak.labels import count_labels
from gradleak.leak import Leak, observe
from gradleak.losses import CrossEntropy, Focal, Loss
from tests.auditing.networks import Net, mlp, vectors
from tests.auditing.test_audit import why


class OnceOnly(torch.autograd.Function):
    """The square, whose gradient cannot be differentiated again."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:
        return 2 * ctx.saved_tensors[0] * grad


def once_only() -> nn.Sequential:
    """Return a network whose body has no second derivative."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), Net(lambda _, x: OnceOnly.apply(x)), nn.Flatten(), nn.Linear(4 * 36, 10))


def outcome(report: Report, target: str, place: int = 0) -> tuple[str, str]:
    found = report.outcome(target, report.cases[place])
    assert found is not None
    return found.outcome, found.why


@functools.cache
def silent() -> Report:
    return gradleak.audit(once_only(), torch.rand(4, 3, 8, 8), torch.arange(4), batch_sizes=(1, 2), steps=2)


@pytest.mark.parametrize("size", [1, 3, 7])
def test_a_guess_has_what_guesses_have_on_average(size: int) -> None:
    leak = observe(mlp(6, 5), torch.rand(size, 6), labels := torch.arange(size) % 3)
    report = gradleak.audit(mlp(6, 5), torch.rand(size, 6), labels, batch_sizes=(size,), steps=2)
    (chance,) = {finding.chance["labels"] for finding in report.findings if finding.chance}
    counts = labels.bincount(minlength=5)
    guesses = torch.stack([count_labels(leak, "guess", seed=seed) for seed in range(400)])
    mean = torch.minimum(guesses, counts).sum(dim=1).double().mean() / size
    assert chance == pytest.approx(float(mean), abs=0.06)


def test_inputs_that_matching_broke_down_on_were_not_attacked() -> None:
    report = silent()
    state, why = outcome(report, "inputs")
    assert state == "not attacked"
    assert why.startswith("gradient matching: Sequential has no second derivative, which the search needs")
    assert report.table()[0]["inputs"] == "not attacked"
    assert outcome(report, "features") == ("recovered", "")
    told = of_outcomes(report)
    assert [line.partition(":")[0] for line in told] == ["inputs not attacked"]
    page = report._repr_html_()
    assert page.index("not attacked") < page.index("The network, as the server knows it")
    assert json.loads(report.to_json())["outcomes"][3]["outcome"] == "not attacked"


def test_a_limit_refuses_what_was_not_attacked_unless_it_is_allowed() -> None:
    report = silent()
    line = r"no attack measured 'inputs' .*batch of 1 and in 1 more case.*no second derivative"
    with pytest.raises(InputError, match=line) as caught:
        report.above({"inputs": 0.5})
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="no attack measured 'image-psnr'"):
        report.above({"image-psnr": 20.0})
    assert report.above({"inputs": 0.5}, allow_not_attacked=True) == []
    assert report.above({"inputs": 0.5, "labels": 0.5}) == ["labels = 1 is above 0.5"]
    with pytest.raises(InputError, match="no attack measured 'inputs'"):
        report.worst("inputs")


def test_one_case_that_was_not_attacked_counts_among_others_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = units.first_layer
    monkeypatch.setattr(units, "first_layer", lambda leak: ("", "several") if leak.batch_size > 1 else refused(leak))
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1, 4), loss=Focal(), steps=2)
    assert [outcome(report, "inputs", place)[0] for place in (0, 1)] == ["recovered", "not attacked"]
    assert "this is Focal" in why(report, "label of one sample")
    assert report.worst("inputs", batch_size=1) == report.worst("inputs", allow_not_attacked=True) == 1
    with pytest.raises(InputError, match="batch of 4"):
        report.worst("inputs")


# -------------------------------------------------------------------------------------------------------- words, tokens
def tied() -> nn.Module:
    """Return a network whose token embeddings are the last layer's weight as well, as in GPT-2."""
    torch.manual_seed(0)
    block = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = Net(
        lambda net, x: net.head(net.block(net.tokens(x))),
        tokens=nn.Embedding(200, 16), block=block, head=nn.Linear(16, 200, bias=False),
    )  # fmt: skip
    model.get_submodule("head").weight = model.get_parameter("tokens.weight")
    return model


def test_words_of_tied_embeddings_are_read_from_the_first_layer() -> None:
    tokens = torch.randint(200, (2, 2, 10), generator=torch.Generator().manual_seed(0))
    report = gradleak.audit(tied(), *tokens, batch_sizes=(1,))
    assert outcome(report, "words") == ("recovered", "")
    # The model is not causal, so there are no prefixes.
    assert outcome(report, "sentences")[0] == "not attacked"
    assert report.proofs == [
        "B = 1: nothing is proved of labels, features and inputs: 'head.weight' is tied to 'tokens.weight', and the "
        "gradient is the sum of both"
    ]
    with pytest.raises(InputError, match="no attack measured 'labels'"):
        report.above({"labels": 0.5})


# --------------------------------------------------------------------------------------------------------- local steps
def stepped() -> Leak:
    inputs, targets = vectors()
    return gradleak.observe(mlp().double(), inputs.double(), targets, local_steps=4)


def test_an_update_of_several_steps_proves_nothing_and_is_not_matched() -> None:
    inputs, targets = vectors()
    report = gradleak.audit_update(stepped(), inputs=inputs.double(), targets=targets, steps=2)
    assert report.proofs == [
        "B = 3: nothing is proved of labels, features and inputs: the update is the sum of the gradients of 4 local "
        "steps, each at other weights"
    ]
    state, why = outcome(report, "features")
    assert state == "not attacked"
    assert "the update is the sum of 4 gradients along a path" in why
    inputs_found = [finding.attack for finding in report.findings if finding.attack == "unit by unit"]
    assert inputs_found, "units of the first layer are read after several steps too"
    assert outcome(report, "labels")[0] != "not attacked", "LLG counts the labels of all steps"


ONE_STEP: dict[str, Callable[[Leak], object]] = {
    "match": lambda leak: gradleak.images.match(leak, torch.zeros(3, dtype=torch.long)),
    "restore_batches": lambda leak: gradleak.images.restore_batches(leak, torch.zeros(3, dtype=torch.long)),
    "polished": lambda leak: gradleak.images.polished(leak, torch.zeros(1, 40), torch.zeros(1, 12)),
    "trace_fully_connected": gradleak.images.trace_fully_connected,
    "trace_convolutional": gradleak.images.trace_convolutional,
    "trace_transformer": gradleak.images.trace_transformer,
    "peel": gradleak.images.peel,
    "read_sentences": sequences.read_sentences,
    "read_prefixes": sequences.read_prefixes,
}


@pytest.mark.parametrize("attack", ONE_STEP)
def test_attacks_on_one_gradient_refuse_several_local_steps(attack: str) -> None:
    with pytest.raises(InputError, match="the sum of the gradients of 4 local steps, each at other weights"):
        ONE_STEP[attack](stepped())


# -------------------------------------------------------------------------------------------------------------- proofs
def proved(model: nn.Module, count: int = 3, *, loss: Loss | None = None, again: bool = False) -> str:
    inputs, targets = vectors(count)
    if again:
        inputs, targets = inputs[:1].repeat(count, 1), targets[:1].repeat(count)
    leak = gradleak.observe(model.double(), inputs.double(), targets, loss=loss)
    subject = subject_of(leak, "vectors", False)
    return " ".join(proofs(leak, subject, reach_of(leak), "onehot", loss or CrossEntropy()))


def frozen(*names: str) -> nn.Module:
    model = mlp()
    for name in names:
        model.get_parameter(name).requires_grad_(False)
    return model


def flat() -> nn.Module:
    """Return a network whose last layer has rank 1."""
    model = mlp()
    with torch.no_grad():
        model.get_parameter("4.weight").copy_(torch.outer(torch.arange(12.0), torch.rand(48)))
    return model


def shared() -> nn.Module:
    torch.manual_seed(0)
    layer = nn.Linear(40, 40)
    return nn.Sequential(layer, nn.Tanh(), layer, nn.Tanh(), nn.Linear(40, 12))


@pytest.mark.parametrize(
    ("told", "why", "still"),
    [
        (lambda: proved(mlp()), "", "labels and features are determined every layer's inputs follow"),
        (lambda: proved(mlp(), 60), "", ""),  # more samples than equations
        (lambda: proved(mlp(), loss=Focal()), "the loss is another than cross-entropy", ""),
        (lambda: proved(frozen("4.weight")), "'4.weight' is frozen", ""),
        (lambda: proved(frozen("4.bias"), 1), "", "one scalar is unknown"),
        (lambda: proved(frozen("2.weight")), "of the inputs: '2.weight' is frozen", "features are determined"),
        (lambda: proved(shared()), "of the inputs: '0.weight' is tied to '2.weight'", "features are determined"),
        (lambda: proved(flat()), "the last layer's weight has rank 1, and its shape allows 11", ""),
        (lambda: proved(mlp(), again=True), "the last layer's gradient has rank 1: not every sample shows", ""),
    ],
)  # fmt: skip
def test_a_proof_is_given_where_its_assumptions_hold(told: object, why: str, still: str) -> None:
    text = told()  # type: ignore[operator]
    assert ("nothing is proved" in text) == bool(why)
    assert why in text
    assert ("determined" in text or "inputs follow" in text) == bool(still)
    assert all(part in text for part in still.split(" every"))


def test_a_defence_and_a_coarse_precision_break_the_proofs() -> None:
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), defenses=("sign",), precisions=("bf16",), steps=1)
    assert report.proofs == [
        "Nothing is proved behind sign: the gradient is changed before it is sent",
        "Nothing is proved in bfloat16: the gradient is rounded",
    ]


def test_a_last_layer_s_frozen_bias_is_in_its_logits_still() -> None:
    model = frozen("4.bias").double()
    nn.init.normal_(model.get_parameter("4.bias"), std=2.0)
    inputs, targets = vectors()
    leak = gradleak.observe(model, inputs[:1].double(), targets[:1])
    assert leak.bias_gradient is None
    found = gradleak.labels.recover_soft_labels(leak, prior="onehot")
    assert found.status == ("unique",)
    assert found.labels.argmax() == targets[0]
    with pytest.raises(InputError, match=r"no gradient of the last layer's weight: '4.weight' is frozen"):
        _ = gradleak.observe(frozen("4.weight"), inputs[:1], targets[:1]).weight_gradient


# ------------------------------------------------------------------------------------------------------------ the rest


def test_where_nothing_can_be_compared_an_answer_without_a_certificate_is_no_recovery() -> None:
    inputs, targets = vectors()
    report = gradleak.audit_update(gradleak.observe(mlp(), inputs[:2], targets[:2]), loss=Focal(), steps=1)
    assert outcome(report, "labels")[0] == "not compared"
    assert outcome(report, "features")[0] == "not attacked"
    with pytest.raises(InputError, match="no private batch to compare with"):
        report.above({"labels": 0.5})
    assert "nothing was recovered" not in report.verdict
    assert "labels (row signs), which cannot be compared without the private batch" in report.verdict
    sure = gradleak.audit_update(gradleak.observe(mlp(), inputs[:1], targets[:1]), steps=1)
    assert outcome(sure, "labels")[0] == "recovered"
    assert "inputs (1 of them guaranteed, unit by unit), labels (guaranteed, label of one sample)" in sure.verdict


# ------------------------------------------------------------------------------ networks that change when they run


@torch.no_grad()
def renormalises(net: Any, _: Tensor) -> None:
    net.head.weight /= net.head.weight.norm()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_only_a_change_of_the_last_digit_is_rounding(dtype: torch.dtype) -> None:
    before, unit = torch.tensor([1.0, -2.0, 0.0], dtype=dtype), torch.finfo(dtype).eps
    assert _equal(before, before * (1 + unit))
    assert not _equal(before, before * (1 + 4 * unit))
    assert not _equal(before, before + torch.tensor([0, 0, unit], dtype=dtype))


def audited(change: Callable[[Any, Tensor], Tensor | None]) -> Report:
    """Audit a network that changes tensors of the network or of the batch in each pass."""
    torch.manual_seed(0)

    def compute(net: Any, x: Tensor) -> object:
        other = change(net, x)
        return net.head(net.first(x if other is None else other).relu())

    model = Net(compute, first=nn.Linear(6, 8), head=nn.Linear(8, 5))
    inputs = torch.rand(4, 6, generator=torch.Generator().manual_seed(0))
    return gradleak.audit(model, inputs, torch.arange(4), batch_sizes=(1, 2), steps=1)


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (lambda net, x: None, ""),
        (renormalises, "the first forward pass changed 'head.weight', and the audit is of the network with these"),
        (lambda net, x: x + 0.1 * torch.randn_like(x), "a second pass on the same batch gives another gradient"),
    ],
)
def test_what_changes_is_said_in_one_line(change: Callable[[Any, Tensor], Tensor | None], note: str) -> None:
    report = audited(change)
    # A network that changes tensors in place cannot be run for several attacks at once, which other notes say.
    notes = [one[: len(note)] for one in report.notes if not one.startswith("Not whole: ")]
    assert notes == ([note] if note else [])
    assert not any("vmap" in one for one in report.notes)
    assert not any(one.certificate == "exact" and one.measures["inputs"] < 1 for one in report.findings)


# ------------------------------------------------------------------------------------------- three grades, one sentence
def truth_of(samples: Tensor, count: int, kind: Kind) -> Truth:
    private_ = private(samples, torch.arange(len(samples)), None)
    return Truth(samples[:count], torch.eye(count), None, kind, private_.shown, private_.columns)


@pytest.mark.parametrize("shape", [(3, 16, 16), (12,)])
def test_inputs_have_three_grades_and_a_guess_has_the_lowest(shape: tuple[int, ...]) -> None:
    samples = torch.rand(40, *shape, generator=torch.Generator().manual_seed(0)).double()
    kind: Kind = "images" if len(shape) == 3 else "vectors"
    truth = truth_of(samples, 2, kind)
    noise = torch.randn(samples[:2].shape, generator=torch.Generator().manual_seed(1)).double()

    def grades(found: Tensor) -> tuple[float, float]:
        measures = truth.measured(Answer(inputs=found))
        return measures["inputs"], measures["recognisable"]

    assert grades(truth.inputs.flip(0)) == (1, 1)
    assert grades(truth.inputs[1:]) == (0.5, 0.5), "one of two samples is found"
    assert grades(torch.cat([noise, truth.inputs])) == (1, 1), "wrong candidates beside the right ones do not count"
    assert grades(truth.inputs + 0.05 * noise) == (0, 1)
    assert grades(truth.inputs + 0.3 * noise) == (0, 0)
    for all_samples in (samples, 0.5 + 0.02 * samples):  # the second are all as near to a guess as 20 dB
        truth = truth_of(all_samples, 2, kind)
        mean = truth.inputs.mean(dim=(2, 3), keepdim=True) if kind == "images" else all_samples.mean(dim=0)
        assert grades(mean + 0 * truth.inputs) == (0, 0)


def test_colour_images_are_recognisable_by_their_structure_and_guesses_are_not() -> None:
    def recognised(found: Tensor, samples: Tensor, count: int) -> float:
        return truth_of(samples, count, "images").measured(Answer(inputs=found))["recognisable"]

    photos = data.load("photos", "test").images[:60].double()
    noise = torch.randn(photos.shape, generator=torch.Generator().manual_seed(0)).double()
    bright = photos[(photos.mean(dim=(1, 2, 3)) > 0.5) & (photos.flatten(1).std(dim=1) > 0.2)][:8]
    dim = 0.6 * bright  # every edge stays in its place
    assert metrics.psnr(dim, bright).max() < 20
    assert recognised(dim, bright, 8) == 1
    grey, grey_dim = (images.mean(dim=1, keepdim=True) for images in (bright, dim))
    assert recognised(grey_dim, grey, 8) == 0, "only colour images are graded by their SSIM"
    for guess in (photos.mean(dim=(2, 3), keepdim=True) + 0 * photos, photos.mean(dim=0) + 0 * photos, noise):
        low = metrics.psnr(guess, photos) < 20
        assert recognised(guess[low], photos[low], int(low.sum())) == 0, "a guess"


def test_equal_samples_are_found_although_their_mean_is_the_sample() -> None:
    samples, classes = vectors()
    report = gradleak.audit(mlp(), samples[:1].repeat(4, 1), classes[:1].repeat(4), batch_sizes=(1, 4), steps=2)
    graded = [one.grade for one in report.outcomes if one.target == "inputs"]
    assert graded == ["exact", "exact"]


def test_the_verdict_is_one_sentence_on_the_worst_case() -> None:
    samples, classes = vectors()
    report = gradleak.audit(mlp(), samples, classes, batch_sizes=(1,), defenses=("none", "gaussian/1"), steps=2)
    assert report.verdict == (
        "In the worst of 2 cases, without a defence, in a batch of 1: recovered: 1 of 1 inputs exactly (1 of them "
        "guaranteed, unit by unit), 1 of 1 labels (label of one sample)."
    )
    page = report._repr_html_()
    assert page.index(report.verdict) < page.index("What was recovered")
    assert json.loads(report.to_json())["verdict"] == report.verdict
    behind = report.outcome("inputs", report.cases[1])
    assert behind is not None
    assert (behind.outcome, behind.text, behind.grade) == ("not recovered", "not recognisable", "not recognisable")
    assert re.search(r"<td class='number '>not recognisable</td>", page), "what these attacks miss is not called good"


def test_a_limit_may_be_a_grade() -> None:
    assert limits_of(["inputs=recognisable", "labels=0.5"]) == {"recognisable": 0.0, "labels": 0.5}
    assert limits_of(["inputs=exact"]) == {"inputs": 0.0}
    report = gradleak.audit(mlp(), *vectors(), batch_sizes=(1,), steps=2)
    assert report.above({"recognisable": 0.0}) == ["recognisable = 1 is above 0"]
