"""The columns of the rows that the pages on dang2021 record."""

from gradleak.runs.columns import Columns

COLUMNS = Columns()
