"""The search within a budget: what it costs, when it ends, and that it beats noise at the start."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data, metrics, models
from gradleak.images import Prior, match
from gradleak.images.matching import budget
from gradleak.images.matching.objective import Distance, Objective
from gradleak.images.presets import preset
from gradleak.leak import Leak, observe


def photo(size: int = 1) -> tuple[Leak, Tensor, Tensor]:
    """Return a LeNet's leak of photographs with 16 pixels a side, the photographs, and their classes."""
    photos = data.load("photos", "test")
    images = F.avg_pool2d(photos.images[300 : 300 + 7 * size : 7], 2)
    labels = photos.labels[300 : 300 + 7 * size : 7]
    return observe(models.build("lenet", image_size=16, seed=1), data.normalise(images), labels), images, labels


def box() -> Prior:
    low, high = (data.normalise(torch.full((1, 3, 1, 1), edge))[0] for edge in (0.0, 1.0))
    return Prior(box=(low, high))


def test_a_budget_gives_a_better_image_than_the_published_preset_at_as_many_steps() -> None:
    leak, images, labels = photo()
    found = match(leak, labels, budget=60, prior=box())
    short = preset("inverting-gradients")
    published = short.run(leak, labels, optimizer=type(short["optimizer"])(steps=60, signed=True))
    ours, theirs = (float(metrics.psnr(data.denormalise(one.images), images)) for one in (found, published))
    assert ours > theirs + 3
    assert found.status == (("stopped",),)


def test_a_budget_is_the_number_of_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    leak, _, labels = photo(2)
    evaluate, seen = Objective.evaluate, list[int]()

    def counted(self: Objective, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(len(places))
        return evaluate(self, places, owners)

    monkeypatch.setattr(Objective, "evaluate", counted)
    found = match(leak, labels, budget=5)
    assert seen == [1] * 6  # the last evaluation judges the last step
    again = match(leak, labels, budget=5)
    torch.testing.assert_close(found.images, again.images, rtol=0, atol=0)


def test_seconds_become_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([0.0, 1.0, 5.0])  # a search of three steps takes four seconds
    monkeypatch.setattr(time, "process_time", lambda: next(times))
    leak, _, labels = photo()
    assert int(match(leak, labels, budget="15s").history[-1]) == 9


def test_settled_ends_when_a_doubling_hardly_lowers_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    leak, _, labels = photo()
    monkeypatch.setattr(budget, "FIRST", 4)
    monkeypatch.setattr(budget, "LAST", 16)
    assert match(leak, labels, budget="settled").status == (("stopped",),)
    monkeypatch.setattr(budget, "FALLS", 10.0)
    found = match(leak, labels, budget="settled")
    assert (found.status, int(found.history[-1])) == ((("settled",),), 8)


def test_inputs_without_pixels_are_matched_as_well() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
    inputs = torch.randn(1, 6) / 2
    found = match(observe(model, inputs, torch.tensor([1])), torch.tensor([1]), budget=300)
    assert float((found.images - inputs).abs().max()) < 0.05


def table(classes: int, size: int) -> tuple[Leak, Tensor, Tensor]:
    """Return the leak of a small network for a table, the records, and their classes."""
    torch.manual_seed(classes)
    model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, classes))
    inputs, labels = torch.randn(size, 20), torch.arange(size) % classes
    return observe(model, inputs, labels), inputs, labels


@pytest.mark.parametrize(("classes", "size"), [(2, 1), (2, 2), (5, 3)])
def test_second_order_ends_a_search_with_the_records_themselves(classes: int, size: int) -> None:
    leak, inputs, labels = table(classes, size)
    found = match(leak, labels, budget=400)
    assert found.status == (("settled",),)
    assert float(torch.cdist(inputs, found.images).amin(dim=1).max()) < 1e-3
    assert int(found.history[-1]) == 400
    assert float(found.curves[0, 0, -1]) == float(found.losses)


def test_second_order_changes_nothing_if_the_gradient_is_not_met(monkeypatch: pytest.MonkeyPatch) -> None:
    leak, _, labels = table(5, 2)
    noisy = replace(leak, gradients={name: value + 0.01 for name, value in leak.gradients.items()})
    found = match(noisy, labels, budget=400)
    ending = budget.ending_of(400, 40)
    monkeypatch.setattr(budget, "ENDING", 0.0)
    alone = match(noisy, labels, budget=400 - ending)
    assert (found.status, alone.status) == ((("stopped",),), (("stopped",),))
    assert torch.equal(found.images, alone.images)


def test_first_order_is_kept_where_a_module_takes_no_second_order() -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells, self.last = nn.LSTM(2, 8, batch_first=True), nn.Linear(8, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.last(self.cells(inputs)[0][:, -1])

    torch.manual_seed(0)
    leak = observe(Recurrent(), torch.randn(1, 4, 2), torch.tensor([1]))
    assert budget.ending_of(100, 8)
    found = match(leak, torch.tensor([1]), budget=100)
    assert found.images.isfinite().all()
    assert found.losses.isfinite().all()


def test_second_order_is_for_small_batches_and_known_labels() -> None:
    assert budget.ending_of(1000, 3 * 32 * 32) == 0
    assert 0 < budget.ending_of(400, 64) < 133
    leak, _, _ = table(5, 1)
    assert match(leak, "dlg", budget=400).status == (("stopped",),)


def test_a_blur_keeps_flat_images_and_spreads_points() -> None:
    flat = torch.full((1, 1, 3, 8, 12), 2.0)
    torch.testing.assert_close(budget.blurred(flat, 0.2), flat)
    point = torch.zeros(1, 1, 1, 9, 9)
    point[..., 4, 4] = 1
    seen = budget.blurred(point, 0.1)[0, 0, 0]
    torch.testing.assert_close(seen, seen.T)
    assert 0.1 < float(seen[4, 4]) < 0.5
    assert budget.blurred(point, 0.01) is point


def test_the_distance_of_layers_is_finite_where_a_layer_is_silent() -> None:
    own = {"a": torch.zeros(1, 3, requires_grad=True), "b": torch.tensor([[1.0, 0.0]], requires_grad=True)}
    observed = {"a": torch.zeros(1, 3), "b": torch.tensor([[0.0, 1.0]])}
    value = Distance("layers").between(own, observed, "head")
    torch.testing.assert_close(value, torch.zeros(1))  # the logarithm of one
    slopes = torch.autograd.grad(value.sum(), list(own.values()))
    assert all(bool(slope.isfinite().all()) for slope in slopes)


@pytest.mark.parametrize("given", [{"distance": "cosine"}, {"optimizer": "adam"}, {"restarts": 2}])
def test_a_budget_takes_the_place_of_settings(given: dict[str, object]) -> None:
    leak, _, labels = photo()
    with pytest.raises(ValueError, match="takes the place of"):
        match(leak, labels, budget=5, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("wrong", "words"), [(0, "at least 1 step"), ("soon", "such as '30s'")])
def test_a_budget_is_checked(wrong: int | str, words: str) -> None:
    leak, _, labels = photo()
    with pytest.raises(ValueError, match=words):
        match(leak, labels, budget=wrong)
