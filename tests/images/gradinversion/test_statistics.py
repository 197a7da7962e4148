"""The batch-norm prior: its values are batch norm's own, and its gradient is the one that finite differences give."""

from __future__ import annotations

import torch
from torch import nn

from gradleak.images.gradinversion.statistics import Statistics, observe_statistics, statistics_distance
from tests.images.matching.attacked import small


def test_exact_statistics_are_what_batch_norm_takes_in_train_mode() -> None:
    model = small(0, 5, nn.Tanh(), bias=True, norm=True).double().eval()
    inputs = torch.randn(6, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    found = observe_statistics(model, inputs)
    norm = model[1].train()
    norm.momentum = 1.0
    norm.running_mean.zero_()
    model[:2](inputs)
    torch.testing.assert_close(found.means[0], norm.running_mean)
    count = inputs[:, 0, ::2, ::2].numel()
    torch.testing.assert_close(found.variances[0] * count / (count - 1), norm.running_var)


def test_distance_is_the_formula_and_relative_has_no_scale() -> None:
    own = Statistics((torch.tensor([[3.0, 4.0]]),), (torch.tensor([[1.0, 1.0]]),))
    known = Statistics((torch.tensor([[0.0, 0.0]]),), (torch.tensor([[1.0, 3.0]]),))
    assert statistics_distance(own, known).tolist() == [7.0]
    larger = [Statistics(*(tuple(10 * v for v in side) for side in (s.means, s.variances))) for s in (known, own)]
    first = statistics_distance(known, own, relative=True)
    torch.testing.assert_close(statistics_distance(*larger, relative=True), first)
