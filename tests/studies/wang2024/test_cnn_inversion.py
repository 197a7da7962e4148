"""LeNet's study: the closed form, its honest claims, the polish, and what defences leave."""

from __future__ import annotations

from dataclasses import replace

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from gradleak import data, studies
from gradleak.runs.experiments import inputs_of
from gradleak.runs.records import Record
from gradleak.show import figures
from gradleak.studies.wang2024 import cnn_inversion

STUDY = "cnn-inversion"
# Small images: the photographs come back below.
CHOSEN = {"dataset": "digits", "polishings": 1, "compared": 1, "defenses": list(cnn_inversion.DEFENSES)}
# Golden rows hold these as well.
MORE = {"stages": ["untrained", "trained"]}


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

    kept = [one for one in chosen.experiments() if inputs_of(one).get("level") not in levels[1:-1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", cut)
        return pd.DataFrame([inputs_of(one) | row for one in kept for row in one.run()])


def test_the_image_comes_back_and_claims_are_honest(photographs: pd.DataFrame) -> None:
    frame = photographs
    images = frame[(frame["part"] == "closed") & (frame["layer"] == "image")].set_index("dtype")["psnr"]
    assert images["float32"] > 60
    assert images["float64"] > 150
    layers = frame[(frame["part"] == "closed") & frame["claimed"].notna()]
    assert len(layers) == 6
    # A claim is a bound, and no more than a hundred times the error.
    assert (layers["claimed"] / layers["actual"]).between(1, 100).all()
    shown = frame[(frame["part"] == "polish") & frame["psnr"].notna()].set_index("attack")["psnr"]
    # Both errors are rounding errors, and of one image either may be the larger by a factor of two.
    assert shown["polished"] > shown["closed form"] - 6
    assert shown["closed form"] > shown["L2 matching"] + 30


def test_noise_takes_the_image_and_is_noticed(photographs: pd.DataFrame) -> None:
    noisy = photographs[photographs["part"] == "defense"].set_index(["attacker", "level"])["psnr"]
    assert noisy["aware"].sort_index().iloc[0] > 60
    assert noisy["aware"].sort_index().iloc[-1] < 30
    assert noisy["unaware"][1e-3] == -float("inf")


def test_tables_and_figures(record: Record) -> None:
    assert list(cnn_inversion.table(record)["attack"]) == ["L2 matching", "closed form", "polished", "closed form"]
    assert cnn_inversion.batch_table().iloc[1, 2] == "5,136 / 6,144"
    assert len(cnn_inversion.defense_table(record)) == 9
    for draw in (cnn_inversion.figure_images, cnn_inversion.figure_psnr, cnn_inversion.figure_layers):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
