"""LeNet's study: the closed form, its honest claims, the polish, defences, and what attacks reach in which time."""

from __future__ import annotations

import time
from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch

from gradleak import data, studies
from gradleak.images.presets import MATCHING, preset
from gradleak.runs.experiments import inputs_of
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.show.summaries import select
from gradleak.studies.wang2024 import cnn_inversion
from gradleak.studies.wang2024.cnn_inversion import CLOSED, MATCHED, POLISHED, SAFE, SECOND, Race

STUDY = "cnn-inversion"
# Small images: the photographs come back below.
CHOSEN = {"dataset": "digits", "polishings": 1, "compared": 1, "defenses": list(cnn_inversion.DEFENSES)}
CHOSEN |= {"raced": 2, "effort": 5e-3, "batches": [1, 2]}
# Golden rows hold these as well.
MORE = {"stages": ["untrained", "trained"], "second_order": 1}


@pytest.fixture(scope="module")
def photographs() -> pd.DataFrame:
    """The closed form of a photograph, the polish, and behind the least and the most noise.

    The photograph is cut to 24 × 24 pixels: the time grows with the sixth power of the side.
    """
    chosen = studies.parameters(STUDY, "quick", CHOSEN | {"dataset": "photos", "defenses": ["gaussian"]})
    levels, load = cnn_inversion.DEFENSES["gaussian"], data.load

    def cut(name: str, split: str) -> data.Dataset:
        whole = load(name, split)
        return replace(whole, images=whole.images[..., :24, :24])

    kept = [one for one in chosen.experiments() if one.part in ("closed", "polish", "defense")]
    kept = [one for one in kept if inputs_of(one).get("level") not in levels[1:-1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", cut)
        return pd.DataFrame([inputs_of(one) | row for one in kept for row in one.run()])


def test_the_image_comes_back_and_claims_are_honest(photographs: pd.DataFrame) -> None:
    images = select(photographs, part="closed", layer="image").set_index("dtype")["psnr"]
    assert images["float32"] > 60
    assert images["float64"] > 150
    layers = photographs[(photographs["part"] == "closed") & photographs["claimed"].notna()]
    assert len(layers) == 6
    # A claim is a bound, and no more than a hundred times the error.
    assert (layers["claimed"] / layers["actual"]).between(1, 100).all()
    shown = select(photographs, part="polish").dropna(subset="psnr").set_index("attack")["psnr"]
    # Both errors are rounding errors, and of one image either may be the larger by a factor of two.
    assert shown[POLISHED] > shown[CLOSED] - 6
    assert shown[CLOSED] > shown[MATCHED] + 30


def test_noise_takes_the_image_and_is_noticed(photographs: pd.DataFrame) -> None:
    noisy = select(photographs, part="defense").set_index(["attacker", "level"])["psnr"]
    assert noisy["aware"].sort_index().iloc[0] > 60
    assert noisy["aware"].sort_index().iloc[-1] < 30
    assert noisy["unaware"][1e-3] == -float("inf")


def test_attacks_run_on_every_image_and_only_the_closed_form_reaches_40_db(record: Record) -> None:
    images = select(record.rows(Race), what="image")
    assert images.groupby("attack").size().to_dict() == dict.fromkeys((*MATCHING, SAFE, CLOSED), 2)
    assert images["seconds"].gt(0).all()
    levels = select(record.rows(Race), what="level", psnr_to_reach=40)
    closed = select(levels, attack=CLOSED)
    assert closed["reached"].all()
    assert closed["seconds"].nunique() == 1
    assert not levels[levels["attack"].isin(MATCHING)]["reached"].any()
    curves = select(record.frame(), what="curve").sort_values("seconds")
    for _, curve in curves.groupby(["part", "attack", "size"], dropna=False):
        assert curve["psnr"].diff().dropna().ge(0).all()


def test_a_level_is_reached_when_the_best_so_far_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(100))
    monkeypatch.setattr(time, "process_time", lambda: next(now))
    timer = cnn_inversion.Timer(data.normalise(torch.zeros(2, 3, 8, 8, dtype=torch.float64)), "cpu")  # at second 0
    near = [torch.full((1, 1, 3, 8, 8), 10 ** (-level / 20), dtype=torch.float64) for level in (10, 28, 22, 50)]
    private = [data.normalise(image[0])[None] for image in near]
    both = torch.arange(2)
    timer.watch(both, 0, torch.cat([private[0], private[1]]))  # seconds 1 to 2: looking is not counted
    timer.watch(both, 5, torch.cat([private[1], private[2]]))
    rows = timer.rows(torch.cat([private[3], private[2]]).squeeze(1))
    seconds = {(row["image"], row["psnr_to_reach"]): row.get("seconds") for row in rows if row["what"] == "level"}
    # An image's seconds are half of what both took: 1, 2 and 3. What the second had first counts, though it gets worse.
    expected = {(0, 20): 1.0, (0, 25): 1.0, (0, 40): 1.5, (0, 60): None, (1, 25): 0.5, (1, 30): None}
    assert {key: seconds[key] for key in expected} == expected
    assert [row["psnr"] for row in rows if row["what"] == "image"] == pytest.approx([50, 28], abs=0.01)


def test_the_effort_scales_the_published_steps() -> None:
    for name in MATCHING:
        own = cnn_inversion.options_of(name, "untrained", 0.1, 3)["optimizer"]
        assert own.steps == preset(name)["optimizer"].steps // 10
    assert cnn_inversion.options_of("wang2024-l2", "trained", 1.0, 3)["prior"].variation == 1e-3


def test_together_compares_with_one_in_the_same_run(record: Record) -> None:
    together = record.rows(cnn_inversion.Together)
    assert select(together, at_once=1)["gain"].eq(1).all()
    assert len(together) == 2 * 3
    assert (together["rate"] * together["seconds"]).tolist() == pytest.approx([1] * 6)


def test_second_order_is_run_image_by_image() -> None:
    parameters = cnn_inversion.Parameters(raced=3, second_order=2, stages=["untrained", "trained"])
    races = [one for one in parameters.experiments() if isinstance(one, Race) and one.attack in (SECOND, POLISHED)]
    runs = [("untrained", SECOND), ("untrained", POLISHED), ("trained", POLISHED)]
    assert [(one.stage, one.attack, one.skip) for one in races] == [(*run, place) for run in runs for place in (0, 1)]


def test_tables_and_figures(record: Record) -> None:
    assert list(cnn_inversion.table(record)["attack"]) == [MATCHED, CLOSED, POLISHED, CLOSED]
    assert len(cnn_inversion.defense_table(record)) == 9
    for name in ("images", "psnr", "layers", "race", "together"):
        figure = getattr(cnn_inversion, f"figure_{name}")(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
