"""The columns of the rows that the pages on yin2021 record."""

from gradleak.runs import kinds
from gradleak.runs.columns import Column, Columns

COLUMNS = Columns(
    # Pages batch-restoration and cocktail-party: the labels that a rule restores, over `count` batches of one size.
    rule=Column("rule"),
    size=Column("batch size", "{:.0f}"),
    repeats=Column("classes may repeat"),
    accuracy=Column("labels restored (%)", ".2f"),
    spread=Column("standard deviation over batches", ".1f"),
    count=Column("cases", "{:.0f}"),
    # The cosines of a batch's true and recovered features. FastICA iterates until two steps are nearly alike. Where
    # features are no independent components it amplifies rounding errors until single batches differ; the statuses are
    # compared exactly.
    batch=Column("batch", "{:.0f}"),
    attack=Column("attack"),
    status=Column("status"),
    seconds=Column("time (s)", ".2g"),
    cosine=Column("mean cosine", ".3f", kinds.measured(absolute=0.5)),
    least=Column("least cosine", ".3f", kinds.measured(absolute=0.5)),
    near=Column("features with a cosine of at least 0.99", "{:.0f} %", kinds.measured(absolute=50.0)),
)
