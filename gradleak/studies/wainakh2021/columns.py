"""The columns of the rows that the pages on wainakh2021 record."""

from gradleak.runs.columns import Column, Columns

SHARE = "{:.1f} %"

COLUMNS = Columns(
    # The success of one attack on `count` batches of one size.
    attack=Column("attack"),
    size=Column("batch size", "{:.0f}"),
    success=Column("labels found", SHARE),
    spread=Column("standard deviation over batches", SHARE),
    count=Column("batches", "{:.0f}"),
    classes=Column("classes found", SHARE),
    seconds=Column("seconds for all batches", ".2g"),
    over_guess=Column("labels found above the guess", "{:.1f} points"),
)
