"""Gradient matching: the batched engine against plain loops, its guards, and what it promises."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import augment, models, reporting
from gradleak.errors import InputError, UnknownName
from gradleak.images import LBFGS, Adam, Distance, LevenbergMarquardt, Prior, match, total_variation
from gradleak.images.matching.engine import _chunk
from gradleak.images.matching.levenberg import Misfit, _square
from gradleak.images.matching.objective import Objective
from gradleak.images.presets import PRESETS, preset
from gradleak.leak import Leak, observe

KINDS = ("l2", "cosine", "layers")


def small(seed: int, classes: int, activation: nn.Module, bias: bool, norm: bool) -> nn.Module:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, stride=2, padding=1), activation]
    if norm:
        layers.insert(1, nn.BatchNorm2d(4))
    return nn.Sequential(*layers, nn.Conv2d(4, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, classes, bias))


def observed(model: nn.Module, count: int, size: int, classes: int, seed: int) -> tuple[list[Leak], Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    dtype = next(model.parameters()).dtype
    inputs = torch.randn(count * size, 2, 8, 8, generator=generator).to(dtype)
    labels = torch.rand(count * size, classes, generator=generator).to(dtype).softmax(dim=1)
    leaks = [observe(model, inputs[n * size : (n + 1) * size], labels[n * size : (n + 1) * size]) for n in range(count)]
    return leaks, inputs, labels


def plain(
    leak: Leak, inputs: Tensor, labels: Tensor, distance: Distance, prior: Prior, features: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The loss of one attack and its gradient, by autograd and nothing else."""
    inputs = inputs.clone().requires_grad_()
    seen: list[Tensor] = []
    hook = leak.model.get_submodule(leak.head).register_forward_pre_hook(lambda _m, args: seen.append(args[0]))
    loss = -(labels * F.log_softmax(leak.model.eval()(inputs), dim=1)).sum(dim=1).mean()
    hook.remove()
    names = list(leak.gradients)
    own = torch.autograd.grad(loss, [leak.model.get_parameter(name) for name in names], create_graph=True)
    weights = [distance.head if name.startswith(f"{leak.head}.") else 1.0 for name in names]
    pairs = [(w, g.flatten(), leak.gradients[n].flatten()) for w, g, n in zip(weights, own, names, strict=True) if w]
    if distance.kind == "l2":
        value = sum(w * (a - b).square().sum() for w, a, b in pairs)
    elif distance.kind == "layers":
        value = sum(w * (1 - F.cosine_similarity(a, b, dim=0)) for w, a, b in pairs)
    else:
        scaled = [torch.cat([w**0.5 * side for w, *both in pairs for side in both[i : i + 1]]) for i in (0, 1)]
        value = 1 - F.cosine_similarity(*scaled, dim=0)
    if features is not None:
        a, b = seen[0].flatten(), features.flatten()
        own_term = (a - b).square().sum() if distance.kind == "l2" else 1 - F.cosine_similarity(a, b, dim=0)
        value = value + distance.feature * own_term
    across = (inputs[..., 1:] - inputs[..., :-1]).abs().mean()
    down = (inputs[..., 1:, :] - inputs[..., :-1, :]).abs().mean()
    value = value + prior.variation * (across + down) * (1 if prior.definition == "sum" else 0.5)
    value = value + prior.square * inputs.square().mean()
    (slope,) = torch.autograd.grad(value, [inputs])
    return value.detach(), slope


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 3),
    size=st.integers(1, 3),
    classes=st.integers(2, 5),
    bias=st.booleans(),
    norm=st.booleans(),
    kind=st.sampled_from(KINDS),
    head=st.sampled_from([0.0, 1.0, 2.0]),
    feature=st.sampled_from([0.0, 2.0]),
    variation=st.sampled_from([0.0, 0.1]),
    definition=st.sampled_from(["sum", "mean"]),
    square=st.sampled_from([0.0, 0.1]),
    joint=st.booleans(),
)
def test_objective_equals_a_plain_loop(
    seed: int,
    count: int,
    size: int,
    classes: int,
    bias: bool,
    norm: bool,
    kind: str,
    head: float,
    feature: float,
    variation: float,
    definition: str,
    square: float,
    joint: bool,
) -> None:
    model = small(seed, classes, nn.Sigmoid(), bias, norm).double()
    generator = torch.Generator().manual_seed(seed + 1)
    inputs = torch.randn(count, size, 2, 8, 8, generator=generator).double()
    labels = torch.randn(count, size, classes, generator=generator).double().softmax(dim=2)
    leaks = [observe(model, inputs[n].flip(0) + 0.3, labels[n]) for n in range(count)]
    known = torch.randn(count, size, 48, generator=generator).double() if feature else None
    distance = Distance(kind, head, feature)  # type: ignore[arg-type]
    prior = Prior(variation, definition, square)  # type: ignore[arg-type]
    objective = Objective(leaks, None if joint else labels, known, distance, prior)
    places = torch.cat([inputs.flatten(1), labels.log().flatten(1)], dim=1) if joint else inputs.flatten(1)
    # Two attacks on the last leak, one on each of the others, in another order.
    owners = torch.tensor([count - 1, *range(count)])
    losses, slopes = objective.evaluate(places[owners], owners)
    for row, owner in enumerate(owners.tolist()):
        wanted, slope = plain(
            leaks[owner], inputs[owner], labels[owner], distance, prior, None if known is None else known[owner]
        )
        torch.testing.assert_close(losses[row], wanted, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(slopes[row, : slope.numel()], slope.flatten(), rtol=1e-7, atol=1e-10)


def test_adam_walks_as_torchs_own_does() -> None:
    model = models.build("lenet", seed=3).double()
    torch.manual_seed(0)
    inputs, labels = torch.randn(4, 3, 32, 32).double(), torch.rand(4, 10).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(4)]
    start = torch.randn(4, 3, 32, 32).double()
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
    model = small(5, 3, nn.Sigmoid(), True, False).double()
    leaks, _, labels = observed(model, 3, 1, 3, 1)
    start = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(9)).double()
    for steps, digits in ((1, 1e-10), (2, 1e-7)):
        found = match(
            leaks,
            labels,
            optimizer=LBFGS(steps=steps, search=False, history=7),
            start=start,
        )
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


def test_plain_lbfgs_ends_when_no_attack_has_a_step_to_take() -> None:
    model = small(2, 3, nn.Sigmoid(), False, False).double()
    torch.manual_seed(0)
    inputs, labels = torch.randn(2, 2, 8, 8).double(), torch.rand(2, 3).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(2)]
    # So near that the slope still counts, and what a step promises does not.
    start = inputs + 1e-4 * torch.randn_like(inputs)
    found = match(leaks, labels, optimizer=LBFGS(steps=3, search=False), start=start)
    assert found.status == (("settled",), ("settled",))
    assert (found.losses < 1e-9).all()


@pytest.mark.parametrize("search", [True, False])
def test_lbfgs_of_many_attacks_is_that_of_each_alone(search: bool) -> None:
    model = small(2, 3, nn.Sigmoid(), False, False).double()
    torch.manual_seed(0)
    inputs, labels = torch.randn(5, 2, 8, 8).double(), torch.rand(5, 3).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(5)]
    chosen = LBFGS(steps=1, search=search, history=9)
    start = torch.randn(5, 2, 8, 8).double()
    together = match(leaks, labels, optimizer=chosen, start=start)
    chunked = match(leaks, labels, optimizer=chosen, start=start, chunk=2)
    torch.testing.assert_close(together.images, chunked.images, rtol=1e-6, atol=1e-8)
    for n in range(5):
        alone = match(leaks[n], labels[n : n + 1], optimizer=chosen, start=start[n : n + 1])
        torch.testing.assert_close(together.images[n : n + 1], alone.images, rtol=1e-6, atol=1e-8)


def test_a_searched_run_only_falls_and_finds_the_input() -> None:
    model = small(4, 4, nn.Sigmoid(), False, False).double()
    torch.manual_seed(1)
    inputs, labels = torch.randn(6, 2, 8, 8).double(), torch.rand(6, 4).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(6)]
    found = match(leaks, labels, optimizer=LBFGS(steps=40), restarts=2, seed=3)
    assert torch.isfinite(found.losses).all()
    assert (found.bad == 0).all()
    curves = found.curves.flatten(0, 1)
    assert (curves.diff(dim=1) <= 0).all()
    assert (curves[:, -1] < 1e-10).all()
    assert found.images.shape == inputs.shape
    assert found.attempts.shape == (6, 2, 1, 2, 8, 8)
    best = found.losses.min(dim=1)
    assert (found.chosen == best.indices).all()
    torch.testing.assert_close(found.images, found.attempts[torch.arange(6), found.chosen].flatten(0, 1))


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


@pytest.mark.parametrize("size", [1, 7, 8, 19])
def test_a_square_of_strips_is_the_whole_product(size: int) -> None:
    slopes = torch.randn(2, size, 30, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    torch.testing.assert_close(_square(slopes), slopes @ slopes.mT, rtol=1e-12, atol=1e-12)


def test_levenberg_marquardt_ends_where_rounding_explains_the_rest() -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Conv2d(2, 8, 5, 2, 2), nn.Sigmoid(), nn.Flatten(), nn.Linear(128, 4, bias=False))
    inputs, labels = torch.randn(1, 2, 8, 8), torch.rand(1, 4).softmax(dim=1)
    leak = observe(model, inputs, labels)
    found = match(leak, labels, optimizer=LevenbergMarquardt(steps=60), seed=1)
    assert found.status == (("settled",),)
    rounding = Misfit([leak], labels[None], inputs.shape).rounding
    arrived = int(found.history[int((found.curves[0, 0] <= rounding).nonzero()[0])])
    assert int(found.history[-1]) <= arrived + 3
    assert ((found.images - inputs).norm() / inputs.norm()) < 1e-4


def test_progress_is_told_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []

    def told(items: Iterable[object], total: int, description: str) -> Iterator[object]:
        given = list(items)
        yield from given
        ends.append((description, len(given), total))

    monkeypatch.setattr(reporting, "_steps", told)
    leaks, _, labels = observed(small(1, 4, nn.Sigmoid(), True, False), 3, 1, 4, 0)
    match(leaks, labels, optimizer=Adam(steps=5), chunk=2, seed=1)
    assert ends == [("matching, 2 at once", 5, 5), ("matching, 1 at once", 5, 5), ("matching, part by part", 2, 2)]


def test_batches_are_matched_too() -> None:
    model = small(7, 5, nn.Sigmoid(), True, True).double()
    leaks, inputs, labels = observed(model.float(), 2, 3, 5, 4)
    found = match(leaks, labels, optimizer=LBFGS(steps=3))
    assert found.images.shape == inputs.shape
    assert found.labels.shape == labels.shape
    assert (found.curves[..., -1] < found.curves[..., 0]).all()


def test_labels_come_about_in_every_way() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    images = torch.randn(3, 3, 32, 32)
    soft = augment.smooth(torch.tensor([2, 7, 4]), 10, torch.tensor([0.1, 0.3, 0.2]))
    leaks = [observe(model, images[n : n + 1], soft[n : n + 1]) for n in range(3)]
    short = Adam(steps=2)
    torch.testing.assert_close(match(leaks, soft, optimizer=short).labels, soft)
    torch.testing.assert_close(match(leaks, optimizer=short).labels, soft, rtol=0, atol=1e-4)
    assert match(leaks, "idlg", optimizer=short).labels.argmax(dim=1).tolist() == [2, 7, 4]
    free = match(leaks, "dlg", optimizer=short).labels
    torch.testing.assert_close(free.sum(dim=1), torch.ones(3))
    assert (free - soft).abs().sum() > 0.1
    started = match(leaks, "recovered-start", optimizer=Adam(steps=1, rate=1e-6)).labels
    torch.testing.assert_close(started, soft, rtol=0, atol=1e-4)
    hard = match(leaks, torch.tensor([2, 7, 4]), optimizer=short).labels
    assert hard.amax(dim=1).tolist() == [1, 1, 1]


def test_the_same_start_for_every_kind_of_label() -> None:
    model = small(1, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 2, 1, 3, 0)
    first: list[Tensor] = []
    for kind in (labels, "idlg", "dlg"):
        match(leaks, kind, optimizer=Adam(steps=1, rate=1e-9), watch=lambda _who, _step, best: first.append(best))
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=1e-6)
    torch.testing.assert_close(first[0], first[2], rtol=0, atol=1e-6)


def test_a_label_that_is_not_found_is_not_made_up() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    leaks = [observe(model, torch.randn(1, 3, 32, 32), torch.tensor([label])) for label in (1, 2)]
    leaks[1] = replace(leaks[1], gradients={name: torch.zeros_like(g) for name, g in leaks[1].gradients.items()})
    found = match(leaks, "recovered", label_prior="onehot", optimizer=Adam(steps=2))
    assert found.status == (("stopped",), ("no label",))
    assert found.images[1].isnan().all()
    assert found.losses[1, 0] == torch.inf
    assert torch.isfinite(found.images[0]).all()


def test_a_diverged_run_is_counted_and_keeps_its_best() -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 2, 1, 3, 2)
    wild = match(leaks, labels, optimizer=Adam(steps=5, rate=1e38, decay=()))
    assert wild.status == (("diverged",), ("diverged",))
    assert (wild.bad > 0).all()
    assert torch.isfinite(wild.images).all()
    assert torch.isfinite(wild.losses).all()


def test_a_refused_step_is_not_a_diverged_run(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 2, 1, 3, 2)
    evaluate, calls = Objective.evaluate, 0

    def once_infinite(self: Objective, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        losses, slopes = evaluate(self, places, owners)
        return (losses + torch.inf, slopes) if calls == 3 else (losses, slopes)

    monkeypatch.setattr(Objective, "evaluate", once_infinite)
    found = match(leaks, labels, optimizer=LBFGS(steps=1, inner=5))
    assert found.bad.tolist() == [[1], [1]]
    assert found.status == (("stopped",), ("stopped",))
    calls = 0
    whole = match(leaks, labels, optimizer=LBFGS(steps=1, inner=5, search=False))
    assert whole.status == (("diverged",), ("diverged",))
    assert torch.isfinite(found.losses).all()


def test_the_box_holds() -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 2, 1, 3, 2)
    low, high = torch.tensor([-0.2, -0.1]).reshape(2, 1, 1), torch.tensor([0.3, 0.1]).reshape(2, 1, 1)
    images = match(leaks, labels, optimizer=Adam(steps=5, signed=True), prior=Prior(box=(low, high))).images
    assert (images >= low).all()
    assert (images <= high).all()


def test_total_variation_by_both_definitions() -> None:
    image = torch.tensor([[0.0, 1.0], [3.0, 5.0]]).reshape(1, 1, 1, 2, 2)
    assert float(total_variation(image)) == pytest.approx(1.5 + 3.5)
    assert float(total_variation(image, "mean")) == pytest.approx(2.5)


def test_ctrl_c_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small(3, 3, nn.Sigmoid(), False, False)
    leaks, _, labels = observed(model, 3, 1, 3, 2)
    evaluate, calls = Objective.evaluate, 0

    def interrupted(self: Objective, places: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal calls
        calls += 1
        if calls == 6:
            raise KeyboardInterrupt
        return evaluate(self, places, owners)

    monkeypatch.setattr(Objective, "evaluate", interrupted)
    found = match(leaks, labels, optimizer=Adam(steps=50), chunk=2)
    assert found.status == (("interrupted",),) * 3
    assert torch.isfinite(found.losses[:2]).all()
    assert found.losses[2, 0] == torch.inf


def test_finished_attacks_leave() -> None:
    model = small(3, 3, nn.Sigmoid(), False, False).double()
    torch.manual_seed(0)
    inputs, labels = torch.randn(2, 2, 8, 8).double(), torch.rand(2, 3).double().softmax(dim=1)
    leaks = [observe(model, inputs[n : n + 1], labels[n : n + 1]) for n in range(2)]
    start = torch.stack([inputs[0] + 1e-9, inputs[1] + 1])
    found = match(leaks, labels, optimizer=Adam(steps=4), start=start, enough=1e-9)
    assert found.status == (("settled",), ("stopped",))


def test_presets_run() -> None:
    model = models.build("lenet", seed=1)
    torch.manual_seed(0)
    label = augment.smooth(torch.tensor([3]), 10, 0.2)
    leak = observe(model, torch.randn(1, 3, 32, 32), label)
    for name in PRESETS:
        options = preset(name)
        found = match(leak, **options | {"optimizer": replace(options["optimizer"], steps=2)})
        assert found.images.shape == (1, 3, 32, 32), name
        assert torch.isfinite(found.losses).all(), name
    with pytest.raises(UnknownName, match="did you mean 'dlg'"):
        preset("dlgg")


def test_memory_decides_how_many_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = models.build("lenet", seed=1)
    leak = observe(model, torch.randn(1, 3, 32, 32), torch.tensor([3]))
    objective = Objective([leak], torch.ones(1, 1, 10) / 10, None, Distance(), Prior())
    many = _chunk(objective, Adam())
    assert many >= 64
    assert _chunk(objective, LBFGS()) < many
    assert _chunk(objective, LevenbergMarquardt()) == 1


def test_bad_input_is_refused_before_the_first_step() -> None:
    model = small(1, 3, nn.Sigmoid(), True, False)
    leaks, _, labels = observed(model, 2, 1, 3, 0)
    short = Adam(steps=1)
    with pytest.raises(InputError, match="one label a private sample, 2; got 1"):
        match(leaks, labels[:1], optimizer=short)
    with pytest.raises(InputError, match="soft labels \\(N, 3\\)"):
        match(leaks, torch.ones(2, 4) / 4, optimizer=short)
    with pytest.raises(UnknownName, match="kind of label"):
        match(leaks, "recoverd", optimizer=short)
    with pytest.raises(UnknownName, match="distance"):
        match(leaks, labels, distance="l1", optimizer=short)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="optimizer"):
        match(leaks, labels, optimizer="sgd")
    name = "0.weight"
    nan = replace(leaks[1], gradients=leaks[1].gradients | {name: leaks[1].gradients[name] * torch.nan})
    with pytest.raises(InputError, match=r"leak 1: the gradient of '0\.weight' holds NaN"):
        match([leaks[0], nan], labels, optimizer=short)
    wrong = replace(leaks[0], gradients=leaks[0].gradients | {name: torch.zeros(1)})
    with pytest.raises(InputError, match=r"'0\.weight' has shape"):
        match(wrong, labels[:1], optimizer=short)
    other, _, _ = observed(small(2, 3, nn.Sigmoid(), True, False), 1, 1, 3, 0)
    with pytest.raises(InputError, match="another model"):
        match([leaks[0], *other], labels, optimizer=short)
    with pytest.raises(InputError, match="start must be inputs"):
        match(leaks, labels, optimizer=short, start=torch.zeros(1, 2, 8, 8))
    with pytest.raises(InputError, match="plain L2"):
        match(leaks, labels, distance="cosine", optimizer=LevenbergMarquardt())
    batch, _, mixed = observed(model, 1, 2, 3, 0)
    with pytest.raises(InputError, match="iDLG reads the label of one"):
        match(batch, "idlg", optimizer=short)
    assert len(mixed) == 2


def test_many_attacks_stay_within_two_gigabytes() -> None:
    program = """
import resource, torch
from gradleak import models, observe
from gradleak.images import LBFGS, match
torch.manual_seed(0)
model = models.build("lenet", seed=1)
labels = torch.rand(256, 10).softmax(dim=1)
leaks = [observe(model, torch.randn(1, 3, 32, 32), labels[n : n + 1]) for n in range(256)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
match(leaks, labels, optimizer=LBFGS(steps=1, inner=3))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert float(done.stdout) < 2
