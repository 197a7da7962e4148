"""LeNet's study: the closed form, its honest claims, the polish, and what defences leave."""

from __future__ import annotations

import matplotlib.pyplot as plt

from gradleak.book import figures
from gradleak.book.records import Record
from gradleak.studies.wang2024 import cnn_inversion

STUDY = "cnn-inversion"
CHOSEN = {"polishings": 1, "compared": 1, "defenses": list(cnn_inversion.DEFENSES)}


def test_the_image_comes_back_and_claims_are_honest(record: Record) -> None:
    frame = record.frame()
    images = frame[(frame["part"] == "closed") & (frame["layer"] == "image")].set_index("dtype")["psnr"]
    assert images["float32"] > 60
    assert images["float64"] > 150
    layers = frame[(frame["part"] == "closed") & frame["claimed"].notna()]
    assert len(layers) == 6
    assert (layers["claimed"] / layers["actual"]).between(0.2, 5).all()
    shown = frame[(frame["part"] == "polish") & frame["psnr"].notna()].set_index("attack")["psnr"]
    assert shown["polished"] > shown["closed form"] > shown["L2 matching"]


def test_noise_takes_the_image_and_is_noticed(record: Record) -> None:
    frame = record.frame()
    noisy = frame[(frame["part"] == "defense") & (frame["defense"] == "gaussian")].set_index(["attacker", "level"])[
        "psnr"
    ]
    assert noisy["aware"].sort_index().iloc[0] > 60
    assert noisy["aware"].sort_index().iloc[-1] < 30
    assert noisy["unaware"][1e-3] == -float("inf")


def test_tables_and_figures(record: Record) -> None:
    assert list(cnn_inversion.table(record)["attack"]) == ["closed form", "polished", "closed form"]
    assert list(cnn_inversion.batch_table()["convolution 2"])[1] == "5,136 for 6,144"
    assert len(cnn_inversion.layer_table(record)) == 6
    assert set(cnn_inversion.comparison_table(record)["attack"]) == {"L2 matching", "closed form", "polished"}
    assert len(cnn_inversion.defense_table(record)) == 9
    for draw in (cnn_inversion.figure_images, cnn_inversion.figure_psnr, cnn_inversion.figure_layers):
        figure = draw(record)
        assert figures.gray_table(figure).std() > 0.02
        plt.close(figure)
