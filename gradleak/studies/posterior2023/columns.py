"""The columns of the rows that the pages on posterior2023 record."""

from gradleak.runs.columns import Columns

COLUMNS = Columns()
