"""The figure of images that are restored from defended gradients."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from gradleak.show import figures
from gradleak.show.drawn import drawn, only_rows, points
from gradleak.studies.shared.outcomes import KNOWLEDGE


def draw_defended(rows: pd.DataFrame, column: str, *, height: float) -> Figure:
    """Draw a PSNR (dB) behind each defence, one mark for each attacker; 0 dB means that the attack has no answer.

    Args:
        rows: The rows, with the defence in words in the column "defence" and the attackers of `KNOWLEDGE`.
        column: The column of the PSNR.
        height: The height of the figure (inches).
    """
    return drawn(
        rows.assign(psnr=rows[column].clip(lower=0.0)),
        *(
            only_rows(points("psnr", "defence", words, figures.COLOURS[number], s=90 - 30 * number), attacker=attacker)
            for number, (attacker, words) in enumerate(KNOWLEDGE.items())
            if attacker in set(rows["attacker"])
        ),
        lambda axis, _: axis.yaxis.set_inverted(True),
        height=height,
        legend=3,
        xlabel="PSNR (dB); 0: no answer",
    )
