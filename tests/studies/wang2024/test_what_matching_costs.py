"""The study of costs: what is reached and when, and that nothing else is counted."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
import torch

from gradleak.images.presets import MATCHING, preset
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import what_matching_costs as costs

STUDY = "what-matching-costs"
CHOSEN = {"images": 2, "effort": 5e-3, "batches": [1, 2]}


def test_every_attack_runs_on_every_image(record: Record) -> None:
    races = record.rows(costs.Race)
    images = races[races["what"] == "image"]
    assert set(images["attack"]) == {*MATCHING, costs.SAFE, costs.CLOSED}
    assert images.groupby("attack").size().eq(2).all()
    assert images["seconds"].gt(0).all()


def test_the_closed_form_is_at_the_top_levels_at_once(record: Record) -> None:
    races = record.rows(costs.Race)
    levels = races[(races["what"] == "level") & (races["level"] == 40)]
    closed = levels[levels["attack"] == costs.CLOSED]
    assert closed["reached"].all()
    assert not levels[levels["attack"].isin(MATCHING)]["reached"].any()
    assert closed["seconds"].nunique() == 1


def test_curves_rise(record: Record) -> None:
    frame = record.frame()
    for _, curve in frame[frame["what"] == "curve"].groupby(["part", "attack", "size"], dropna=False):
        assert curve.sort_values("seconds")["psnr"].diff().dropna().ge(0).all()


def test_a_level_is_reached_when_the_best_so_far_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(costs.time, "process_time", lambda: next(now))
    truth = costs.data.normalise(torch.zeros(2, 3, 8, 8, dtype=torch.float64))
    clock = costs.Clock(truth)  # at second 0
    near = [torch.full((3, 8, 8), 10 ** (-level / 20), dtype=torch.float64) for level in (10, 28, 22, 50)]
    private = [costs.data.normalise(image[None]).unsqueeze(1) for image in near]
    both = torch.arange(2)
    clock.watch(both, 0, torch.cat([private[0], private[1]]))  # seconds 1 to 2: looking is not counted
    clock.watch(both, 5, torch.cat([private[1], private[2]]))
    clock.done(torch.cat([private[3], private[2]]).squeeze(1))
    rows = clock.rows()
    seconds = {(row["image"], row["level"]): row.get("seconds") for row in rows if row["what"] == "level"}
    # An image's seconds are half of what both took: 1, 2 and 3.
    assert seconds[0, 20] == 1.0
    assert seconds[0, 25] == 1.0
    assert seconds[0, 40] == 1.5
    assert seconds[0, 60] is None
    assert seconds[1, 25] == 0.5  # what it had first counts, though later it is worse
    assert seconds[1, 30] is None
    assert [row["psnr"] for row in rows if row["what"] == "image"] == pytest.approx([50, 28], abs=0.01)


def test_the_effort_scales_the_published_steps() -> None:
    for name in MATCHING:
        own = costs._options(name, "untrained", 0.1, 3)["optimizer"]
        assert own.steps == preset(name)["optimizer"].steps // 10
    assert costs._options("wang2024-l2", "trained", 1.0, 3)["prior"].variation == 1e-3


def test_together_compares_with_one_in_the_same_run(record: Record) -> None:
    together = record.rows(costs.Together)
    assert together[together["at_once"] == 1]["gain"].eq(1).all()
    assert len(together) == 2 * 3
    assert all(math.isclose(row["rate"] * row["seconds"], 1.0) for row in together.to_dict("records"))


def test_tables_and_figures(record: Record) -> None:
    assert len(costs.table(record)) == len(MATCHING) + 2
    for draw in (costs.figure_race, costs.figure_together):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)


def test_second_order_is_run_image_by_image() -> None:
    parameters = costs.Parameters(images=3, second_order=2, stages=["untrained", "trained"])
    races = [one for one in parameters.experiments() if isinstance(one, costs.Race)]
    second = [(one.stage, one.attack, one.skip) for one in races if one.attack in (costs.SECOND, costs.POLISHED)]
    runs = [("untrained", costs.SECOND), ("untrained", costs.POLISHED), ("trained", costs.POLISHED)]
    assert second == [(*run, place) for run in runs for place in (0, 1)]
