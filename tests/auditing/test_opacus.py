"""What a client of DP-SGD sends is Opacus's own: its gradient without noise, its ε, and what attacks get of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gradleak
from gradleak import data, defenses
from gradleak.auditing import Report
from gradleak.auditing.running import audit_update
from gradleak.studies.shared.federation import digit_network

opacus = pytest.importorskip("gradleak.auditing.opacus", reason="opacus is not installed: gradleak[opacus]")
RDPAccountant = pytest.importorskip("opacus.accountants.rdp").RDPAccountant


def audited(sent: Any, inputs: torch.Tensor, targets: torch.Tensor) -> Report:
    """Audit what a client sends, with the samples that it drew."""
    known = {"inputs": inputs[sent.drawn], "targets": targets[sent.drawn]}
    return audit_update(sent.leak, defense=sent.defense, steps=2, images=False, **known)


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
    inputs, targets = digits.images[:40], digits.labels[:40]
    reports = []
    for level in (0.0, 1.0):
        updates = (
            opacus.private_update(model, inputs, targets, batch_size=1, noise_multiplier=level, seed=seed)
            for seed in range(20)
        )
        sent = next(update for update in updates if len(update.drawn) == 1)
        reports.append(audited(sent, inputs, targets))
    assert reports[0].worst("inputs") == reports[0].worst("labels") == 1
    assert reports[1].worst("features") == reports[1].worst("inputs") == 0


def test_nothing_is_certain_of_samples_that_were_clipped_each_by_itself() -> None:
    """Under little noise one factor for both fits; their features are off by the factors that it is not."""
    digits, model = data.load("digits", "train"), digit_network(2023)
    inputs, targets = digits.images[:500], digits.labels[:500]
    sent = opacus.private_update(model, inputs, targets, batch_size=1, noise_multiplier=1e-4, seed=2027)
    assert len(sent.drawn) == 2
    report = audited(sent, inputs, targets)
    of_batch = next(one for one in report.findings if one.attack == "labels and features of a batch")
    assert of_batch.measures["labels"] == 1
    assert of_batch.measures["features"] < 1
    assert of_batch.certificate == "partial"
    assert not [one for one in report.findings if one.certificate in ("unique", "exact")]
    assert report.worst("image-psnr") > 20
