"""The columns of the rows that the pages on posterior2023 record."""

from gradleak.runs.columns import Column, Columns
from gradleak.show.tables import duration

SHARE = "{:.1f} %"
ERROR = ".1e"
INDEX = ".3f"

COLUMNS = Columns(
    # The accuracy of one attack's label counts, averaged over batches. A class accuracy is the Jaccard index of the
    # found and the true set of classes, an instance accuracy that of the found and the true labels. `spread` is the
    # standard deviation over the `count` cases of a row: batches, or samples of predicted probabilities.
    attack=Column("attack"),
    classes=Column("class accuracy", INDEX),
    instances=Column("instance accuracy", INDEX),
    spread=Column("standard deviation", INDEX),
    count=Column("cases", "{:,.0f}"),
    seconds=Column("elapsed time per batch", duration),
    # A trained model: settings of Figure 3 (series "settings") and numbers of auxiliary samples of Figure 4 ("scale").
    series=Column("series"),
    size=Column("batch size", "{:.0f}"),
    share=Column("share of one class", "{:.0%}"),
    auxiliary=Column("auxiliary samples per class", "{:.0f}"),
    accuracy=Column("test accuracy (%)", ".1f"),
    gain=Column("instance accuracy above that in the smallest batches", INDEX),
    # Formulas for the gradient of a loss, and formulas that count labels.
    form=Column("formula"),
    worst=Column("largest relative error", ERROR),
    median=Column("median relative error", ERROR),
    least_weight=Column("least weight Φ", ".2g"),
    confidence=Column("mean probability of a sample's own class", "{:g}"),
    found=Column("samples counted right", SHARE),
    exact=Column("batches counted without error", SHARE),
    # The probability of a class on samples of the class (side "positive") and on all other samples
    # ("negative"), with quantiles.
    step=Column("training steps", "{:.0f}"),
    label=Column("class", "{:.0f}"),
    side=Column("samples of the class or others"),
    mean=Column("mean probability", INDEX),
    q05=Column("5 % quantile", INDEX),
    q25=Column("25 % quantile", INDEX),
    q50=Column("median", INDEX),
    q75=Column("75 % quantile", INDEX),
    q95=Column("95 % quantile", INDEX),
)
