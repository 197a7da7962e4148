"""How many operations attacks launch and how often the host waits, and that masks change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.growth import heads
from gradleak import data, devices, models
from gradleak.images import LBFGS, Adam, match, peel
from gradleak.images.matching import engine
from gradleak.images.matching.objective import MANY, ImagePrior
from gradleak.labels import recover_soft_labels
from gradleak.leak import observe
from tests.gpu.attacks import plain
from tests.gpu.rows import different
from tests.images.matching.attacked import small
from tests.pretended import LARGE, Gpu, pretended_gpu


def counted(work: Callable[[str], Any]) -> Gpu:
    with pretended_gpu(memory=LARGE) as gpu:
        work(gpu.device)
    return gpu


def _exact(classes: int, samples: int) -> Callable[[str], Any]:
    gradients, weight = (one.float() for one in heads(classes, samples))
    return lambda device: recover_soft_labels(gradients.to(device), weight.to(device))


def _matched(settings: Adam | LBFGS, **options: Any) -> Callable[[str], Any]:
    """Match three leaks of a small network, two starts each."""

    def run(device: str) -> Any:
        model = small(2, 3, nn.Sigmoid(), False, False).double().to(device)
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(3, 2, 8, 8, generator=generator, dtype=torch.float64).to(device)
        labels = torch.rand(3, 3, generator=generator, dtype=torch.float64).softmax(dim=1).to(device)
        leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(3)]
        return match(leaks, labels, optimizer=settings, **{"restarts": 2} | options)

    return run


def test_the_exact_solver_launches_no_more_for_more_samples_or_classes() -> None:
    few, many = (counted(_exact(10, samples)) for samples in (32, 1000))
    # Newton's method takes up to eight steps, and in more samples some need more: rounding decides on the last one.
    assert many.operations <= 520  # 20 for the errors that a certificate states and the check of the arguments
    assert many.reads <= 20
    assert many.operations <= few.operations + 200
    some, all_ = (counted(_exact(classes, 32)) for classes in (100, 1000))
    assert all_.operations <= some.operations + 100 <= 760
    assert all_.reads <= some.reads + 3


@pytest.mark.parametrize("settings", [Adam, lambda steps: LBFGS(steps, inner=1, search=False)], ids=["adam", "lbfgs"])
def test_a_step_of_matching_reads_once_in_ten(settings: Callable[[int], Adam | LBFGS]) -> None:
    few, many = (counted(_matched(settings(steps))) for steps in (10, 20))
    assert many.reads - few.reads <= 10 / 10


@pytest.mark.parametrize("distance", ["l2", "cosine"])
@pytest.mark.parametrize("settings", [Adam(steps=6), LBFGS(steps=3, inner=2)], ids=["adam", "lbfgs"])
def test_matching_with_every_prior_is_recorded(
    monkeypatch: pytest.MonkeyPatch, settings: Adam | LBFGS, distance: str
) -> None:
    """What reads a number cannot be recorded, and is then some forty times as slow without a word."""
    made: list[devices.Replayed] = []

    class Seen(devices.Replayed):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            made.append(self)

    monkeypatch.setattr(engine, "Replayed", Seen)
    prior = ImagePrior(variation=0.1)
    counted(_matched(settings, restarts=MANY, prior=prior, distance=distance))
    assert made
    assert all(one.able and one._replay is not None for one in made)


def test_a_line_search_reads_once_in_ten_iterations() -> None:
    few, many = (counted(_matched(LBFGS(steps, inner=40))) for steps in (1, 2))
    assert many.reads - few.reads <= 40 / 10


@pytest.mark.parametrize(("search", "most"), [(False, 70), (True, 170)])
def test_an_iteration_on_a_full_history_is_recorded(search: bool, most: int) -> None:
    few, many = (counted(_matched(LBFGS(steps, inner=40, history=4, search=search))) for steps in (1, 2))
    # Without recordings there were 132 and 248.
    assert many.operations - few.operations <= 40 * most


def test_peeling_launches_a_quarter_of_a_loop_over_channels() -> None:
    photo = nn.functional.adaptive_avg_pool2d(data.load("photos", "test").images[:1].double(), 16)

    def peeled(device: str) -> None:
        model = models.build("resnet18-cifar", classes=100, in_channels=3, image_size=16).to(device)
        inputs, labels = data.normalise(photo).float().to(device), torch.zeros(1, dtype=torch.long, device=device)
        assert peel(observe(model, inputs, labels), steps=1).status == "unique"

    gpu = counted(peeled)
    # A loop over the 4,257 channels of the network took 54,000 operations and 4,700 reads.
    assert gpu.operations <= 54_000 / 4
    # Some 30 are for the checks of arguments, which read whether values are finite, and ten for those of the network.
    assert gpu.reads <= 290


ENDING: dict[str, Callable[[str], Any]] = {
    "settled one by one": _matched(Adam(steps=37), enough=0.02),
    "all settled": _matched(Adam(steps=37), enough=0.2),
    "diverged": _matched(Adam(steps=25, rate=1e308, decay=())),
    "L-BFGS settled": _matched(LBFGS(steps=6, inner=7), enough=1e-4),
    "L-BFGS, full steps": _matched(LBFGS(steps=9, inner=7, search=False), enough=1e-4),
    "L-BFGS, points of the history apart": _matched(LBFGS(steps=250, inner=2), enough=1e-4),
    "L-BFGS, from the first loss on": _matched(LBFGS(steps=3, inner=2), enough=1e3),
    "L-BFGS, a full history": _matched(LBFGS(steps=9, inner=7, history=4), enough=1e-4),
    "L-BFGS, full steps, a full history": _matched(LBFGS(steps=9, inner=7, history=4, search=False), enough=1e-4),
    "L-BFGS diverged": _matched(LBFGS(steps=3, inner=7, search=False, rate=1e150)),
}


def test_many_attacks_compute_by_patches_what_few_compute_by_convolutions() -> None:
    run = _matched(Adam(steps=8), restarts=MANY)
    expected = run("cpu")
    with pretended_gpu() as gpu:
        assert different(plain(run(gpu.device)), plain(expected)) == []


@pytest.mark.parametrize("what", ENDING)
def test_attacks_that_end_between_two_reads_end_where_they_do_on_the_cpu(what: str) -> None:
    expected = ENDING[what]("cpu")
    with pretended_gpu() as gpu:
        found = plain(ENDING[what](gpu.device))
    assert len({one for own in expected.status for one in own} - {"stopped"}) == 1, "some attacks end early"
    assert different(found, plain(expected)) == []
