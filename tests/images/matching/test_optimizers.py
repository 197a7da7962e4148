"""Searches over many attacks at once, against torch's own and against each alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from gradleak.images import LBFGS, Adam, Distance, LevenbergMarquardt, Prior, match
from gradleak.images.matching.levenberg import Misfit
from gradleak.leak import Leak, observe
from tests.images.matching.attacked import observed, plain, small


def clients(seed: int, count: int, classes: int = 3, drawn: int = 0) -> tuple[list[Leak], Tensor, Tensor]:
    """Return leaks of single samples of a small network in float64, the samples and their labels."""
    model = small(seed, classes, nn.Sigmoid(), False, False).double()
    torch.manual_seed(drawn)
    return observed(model, count, 1, classes, drawn)


def test_adam_walks_as_torchs_own_does() -> None:
    leaks, _, labels = clients(3, 4)
    start = torch.randn(4, 2, 8, 8, generator=torch.Generator().manual_seed(9)).double()
    chosen = Adam(steps=20, rate=0.1)
    found = match(leaks, labels, distance="cosine", optimizer=chosen, start=start, prior=Prior(variation=1e-2))
    for n in range(4):
        own = start[n : n + 1].clone().requires_grad_()
        optimizer = torch.optim.Adam([own], lr=0.1)
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [7, 12, 17], gamma=0.1)
        best = (torch.inf, own.detach().clone())
        for step in range(21):
            loss, slope = plain(leaks[n], own.detach(), labels[n : n + 1], Distance("cosine"), Prior(1e-2), None)
            best = min(best, (float(loss), own.detach().clone()), key=lambda one: one[0])
            if step < 20:
                own.grad = slope
                optimizer.step()
                schedule.step()
        torch.testing.assert_close(found.images[n], best[1][0], rtol=0, atol=1e-8)
        assert abs(float(found.losses[n, 0]) - best[0]) < 1e-12


def test_plain_lbfgs_walks_as_torchs_own_does() -> None:
    leaks, _, labels = clients(5, 3)
    start = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(9)).double()
    for steps, digits in ((1, 1e-10), (2, 1e-7)):
        found = match(leaks, labels, optimizer=LBFGS(steps=steps, search=False, history=7), start=start)
        for n in range(3):
            own = start[n : n + 1].clone().requires_grad_()
            optimizer = torch.optim.LBFGS([own], lr=1.0, history_size=7)
            best = torch.inf

            def closure(n: int = n, own: Tensor = own) -> Tensor:
                nonlocal best
                loss, own.grad = plain(leaks[n], own.detach(), labels[n : n + 1], Distance(), Prior(), None)
                best = min(best, float(loss))
                return loss

            for _ in range(steps):
                optimizer.step(closure)  # type: ignore[arg-type]
            closure()
            assert float(found.losses[n, 0]) == pytest.approx(best, rel=digits)


@pytest.mark.parametrize("search", [True, False])
def test_lbfgs_of_many_attacks_is_that_of_each_alone(search: bool) -> None:
    leaks, _, labels = clients(2, 5)
    chosen = LBFGS(steps=1, search=search, history=9)
    start = torch.randn(5, 2, 8, 8).double()
    together = match(leaks, labels, optimizer=chosen, start=start)
    chunked = match(leaks, labels, optimizer=chosen, start=start, chunk=2)
    torch.testing.assert_close(together.images, chunked.images, rtol=1e-6, atol=1e-8)
    for n in range(5):
        alone = match(leaks[n], labels[n : n + 1], optimizer=chosen, start=start[n : n + 1])
        torch.testing.assert_close(together.images[n : n + 1], alone.images, rtol=1e-6, atol=1e-8)


def test_a_searched_run_only_falls_and_finds_the_input() -> None:
    leaks, inputs, labels = clients(4, 2, classes=4, drawn=1)
    found = match(leaks, labels, optimizer=LBFGS(steps=40), restarts=2, seed=3)
    assert (found.bad == 0).all()
    curves = found.curves.flatten(0, 1)
    assert (curves.diff(dim=1) <= 0).all()
    assert (curves[:, -1] < 1e-10).all()
    assert found.attempts.shape == (2, 2, *inputs[:1].shape)
    assert (found.chosen == found.losses.argmin(dim=1)).all()
    torch.testing.assert_close(found.images, found.attempts[torch.arange(2), found.chosen].flatten(0, 1))


def test_a_diverged_run_is_counted_and_keeps_its_best() -> None:
    leaks, _, labels = observed(small(3, 3, nn.Sigmoid(), False, False), 2, 1, 3, 2)
    wild = match(leaks, labels, optimizer=Adam(steps=5, rate=1e38, decay=()))
    assert wild.status == (("diverged",), ("diverged",))
    assert (wild.bad > 0).all()
    assert torch.isfinite(wild.images).all()
    assert torch.isfinite(wild.losses).all()


def test_the_box_holds() -> None:
    leaks, _, labels = clients(3, 2)
    low, high = torch.tensor([-0.2, -0.1]).reshape(2, 1, 1), torch.tensor([0.3, 0.1]).reshape(2, 1, 1)
    images = match(leaks, labels, optimizer=Adam(steps=5, signed=True), prior=Prior(box=(low, high))).images
    assert (images >= low).all()
    assert (images <= high).all()


# ------------------------------------------------------------------------------------------------ Levenberg-Marquardt
def test_levenberg_marquardt_finds_inputs_to_the_last_digit() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(
        *(nn.Conv2d(2, 8, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(8, 8, 5, 2, 2), nn.Sigmoid()),
        *(nn.Flatten(), nn.Linear(32, 4, bias=False)),
    ).double()
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.5, 0.5)
    inputs, labels = torch.randn(3, 2, 8, 8).double(), torch.rand(3, 4).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(3)]
    found = match(leaks, labels, optimizer=LevenbergMarquardt(), seed=1, restarts=2)
    assert found.images.dtype == torch.float64
    assert ((found.images - inputs).flatten(1).norm(dim=1) / inputs.flatten(1).norm(dim=1)).max() < 1e-9
    assert found.status == (("settled", "settled"),) * 3


def test_levenberg_marquardt_ends_where_rounding_explains_the_rest() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 8, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 4, bias=False))
    inputs, labels = torch.randn(1, 2, 8, 8), torch.rand(1, 4).softmax(dim=1)
    leak = observe(model, inputs, labels)
    found = match(leak, labels, optimizer=LevenbergMarquardt(steps=60), seed=1)
    assert found.status == (("settled",),)
    # The size that rounding is expected to have: on the way there the misfit falls by five powers of ten in one step.
    rounding = 4 * Misfit([leak], labels[None], inputs.shape).rounding
    arrived = int(found.history[int((found.curves[0, 0] <= rounding).nonzero()[0])])
    assert int(found.history[-1]) <= arrived + 3
    assert ((found.images - inputs).norm() / inputs.norm()) < 1e-4
