"""What a client of DP-SGD sends is Opacus's own: its gradient without noise, its ε, and what attacks get of it."""

from __future__ import annotations

import pytest
import torch

import gradleak
from gradleak import data, defenses
from gradleak.auditing.running import audit_update
from gradleak.labels import recover_soft_labels
from gradleak.labels.priors import KNOWN
from gradleak.studies.shared.federation import digit_network

opacus = pytest.importorskip("gradleak.auditing.opacus", reason="opacus is not installed: gradleak[opacus]")
RDPAccountant = pytest.importorskip("opacus.accountants.rdp").RDPAccountant


def test_without_noise_it_is_the_sum_of_the_clipped_gradients() -> None:
    digits, model = data.load("digits", "train"), digit_network(0).double()
    inputs, targets = digits.images[:60].double(), digits.labels[:60]
    loose = opacus.private_update(model, inputs, targets, batch_size=6, noise_multiplier=0.0, max_grad_norm=1e3, seed=3)
    whole = gradleak.observe(model, inputs[loose.drawn], targets[loose.drawn]).gradients
    for name, value in loose.leak.gradients.items():
        torch.testing.assert_close(value, whole[name] * len(loose.drawn) / 6, rtol=1e-6, atol=1e-12)
    tight = opacus.private_update(model, inputs, targets, batch_size=6, noise_multiplier=0.0, max_grad_norm=0.5, seed=3)
    assert torch.equal(tight.drawn, loose.drawn)
    clipped = [
        defenses.clip(0.5)(gradleak.observe(model, inputs[place : place + 1], targets[place : place + 1]).gradients)
        for place in tight.drawn.tolist()
    ]
    for name, value in tight.leak.gradients.items():
        torch.testing.assert_close(value, sum(one[name] for one in clipped) / 6, rtol=1e-4, atol=1e-9)
    assert tight.epsilon == float("inf")


def test_noise_is_of_the_deviation_that_is_said_and_costs_what_the_accountant_says() -> None:
    digits, model = data.load("digits", "train"), digit_network(0)
    options = {"batch_size": 4, "max_grad_norm": 0.5, "seed": 1}
    inputs, targets = digits.images[:200], digits.labels[:200]
    clean, noisy = (
        opacus.private_update(model, inputs, targets, noise_multiplier=level, **options) for level in (0.0, 2.0)
    )
    assert torch.equal(clean.drawn, noisy.drawn)
    added = torch.cat([(noisy.leak.gradients[n] - g).flatten() for n, g in clean.leak.gradients.items()])
    assert noisy.noise == pytest.approx(0.25)
    assert float(added.std()) == pytest.approx(0.25, rel=0.05)
    accountant = RDPAccountant()
    accountant.history = [(2.0, 4 / 200, 1)]
    assert noisy.epsilon == pytest.approx(accountant.get_epsilon(1e-5))


def test_a_single_sample_s_factor_is_found_and_large_noise_hides_it() -> None:
    digits, model = data.load("digits", "train"), digit_network(0)
    told = []
    for level in (0.0, 1.0):
        sent = next(
            update
            for seed in range(20)
            if len(
                (
                    update := opacus.private_update(
                        model, digits.images[:40], digits.labels[:40], batch_size=1, noise_multiplier=level, seed=seed
                    )
                ).drawn
            )
            == 1
        )
        known = {"inputs": digits.images[sent.drawn], "targets": digits.labels[sent.drawn]}
        told.append(audit_update(sent.leak, defense=sent.defense, steps=2, images=False, **known))
    assert told[0].worst("inputs") == told[0].worst("labels") == 1
    assert told[1].worst("features") == told[1].worst("inputs") == 0


def test_nothing_is_certain_of_samples_that_were_clipped_each_by_itself() -> None:
    """Under little noise one factor for both fits; their features are off by the factors that it is not."""
    digits, model = data.load("digits", "train"), digit_network(2023)
    inputs, targets = digits.images[:500], digits.labels[:500]
    sent = opacus.private_update(model, inputs, targets, batch_size=1, noise_multiplier=1e-4, seed=2027)
    assert len(sent.drawn) == 2
    known = {"inputs": inputs[sent.drawn], "targets": targets[sent.drawn]}
    report = audit_update(sent.leak, defense=sent.defense, steps=2, images=False, **known)
    of_batch = next(one for one in report.findings if one.attack == "labels and features of a batch")
    assert of_batch.measures["labels"] == 1
    assert of_batch.measures["features"] < 1
    assert of_batch.certificate == "partial"
    assert not [one for one in report.findings if one.certificate in ("unique", "exact")]
    assert report.worst("image-psnr") > 20


def test_no_certified_label_of_a_single_sample_is_wrong() -> None:
    """Random networks, clipping norms, learning rates and noise, attacked as an audit does."""
    certified = 0
    for seed in range(60):
        generator = torch.Generator().manual_seed(seed)
        draw = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
        classes = (3, 5, 10, 30)[seed % 4]
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Linear(12, 40), torch.nn.ReLU(), torch.nn.Linear(40, classes))
        inputs, target = torch.rand(1, 12, generator=generator), torch.tensor([int(draw[3] * classes)])
        sent = opacus.private_update(
            model, inputs, target, batch_size=1, noise_multiplier=0.0 if seed % 3 == 0 else 10 ** (-8 * draw[0]),
            max_grad_norm=10 ** (2 * draw[1] - 1), rate=10 ** (-2 * draw[2]), seed=seed,
        )  # fmt: skip
        leak = sent.leak
        found = recover_soft_labels(
            leak.weight_gradient, leak.weight, bias=leak.bias, bias_gradient=leak.bias_gradient, prior="onehot",
            noise=sent.noise, scale=None,
        )  # fmt: skip
        if found.status[0] == "unique":
            certified += 1
            assert int(found.labels[0].argmax()) == int(target)
            assert float(found.labels[0].max()) > 1 - KNOWN
    assert certified > 20
