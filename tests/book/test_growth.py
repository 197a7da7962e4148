"""How time grows, and what more workers save: powers, hand-outs, and what the pages say of them."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from benchmarks.growth import ALL
from gradleak.book import growth, performance
from gradleak.show import figures

SCALING = pd.DataFrame(
    [
        {"workers": 1, "trials": 10, "seconds": 11.0, "in trials": 10.0},
        {"workers": 2, "trials": 10, "seconds": 6.0, "in trials": 10.2},
    ]
)


def rows() -> pd.DataFrame:
    """Every series of the benchmark, its time the derived power of the size."""
    found = []
    for series in ALL:
        power, _ = growth.DERIVED[series.attack.partition(",")[0], series.grows]
        found += [
            {"attack": series.attack, "grows": series.grows, "size": n, "cpu seconds": 1e-4 * n**power, "MiB": None}
            for n in series.sizes
        ]
    return pd.DataFrame(found)


def test_powers_are_those_of_the_largest_sizes() -> None:
    sizes = [1, 10, 100, 1000]
    assert growth.exponent(sizes, [5.0, 1e-3, 1e-1, 10.0]) == pytest.approx(2)
    assert math.isnan(growth.exponent([1], [1.0]))


def test_every_series_of_the_benchmark_has_its_derived_power() -> None:
    table = growth.growth_table(rows())
    assert len(table.frame) == len(ALL)
    assert [float(power) for power in table.frame["fitted exponent"]] == pytest.approx(
        [float(power) for power in table.frame["derived exponent"]]
    )
    figure = growth.draw(rows())
    assert len(figure.axes[0].lines) == len(ALL)
    assert len(figure.axes[1].lines) == 1 + len(growth.PUBLISHED)
    assert np.std(figures.gray_table(figure)) > 0.02
    plt.close(figure)


def test_trials_go_to_the_worker_that_is_free_first() -> None:
    assert growth.finish([1, 1, 1, 1], 2) == 2
    assert growth.finish([3, 1, 1, 1], 2) == 3
    assert growth.finish([1, 1, 1, 3], 2) == 4, "in their order"
    assert growth.finish([1, 2, 3], 100) == 3
    assert growth.finish([1, 1], 1, each=0.5) == 3


def test_the_page_on_clusters_says_what_was_measured_and_what_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(performance, "results_file", lambda: tmp_path / "none.json")
    assert "not measured yet" in performance.write_clusters(tmp_path)
    text = growth.clusters_text(SCALING)
    assert "10 trials on the workers of one machine: 1 worker took 11.0 s, 2 took 6.0 s, 1.83 times as fast" in text
    assert "The overhead of a trial was 100 ms" in text
    head = next(line for line in text.splitlines() if line.startswith("| page"))
    assert [cell.strip() for cell in head.split("|")[1:-1]][3:6] == ["1 worker", "2 workers", "100 workers"]
    figure = growth.draw_scaling(SCALING)
    assert np.std(figures.gray_table(figure)) > 0.02
    plt.close(figure)
