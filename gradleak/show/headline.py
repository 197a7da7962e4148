"""The finding of a page in one sentence, with its key number and its best figure: what the page opens with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from gradleak.runs.records import Record


@dataclass(frozen=True)
class Headline:
    """The finding of a page.

    Attributes:
        sentence: The finding in one sentence, in which every number is read from the record.
        true: Whether the record supports the sentence; the tests fail if it does not.
        claim: The id of the claim that measures the key number.
        what: What the key number is, with the network, the data and the unit where these are not obvious.
        figure: The function that draws the page's best figure from a record.
        of: What the claim counts, such as "batches" or "images".
    """

    sentence: str
    true: bool
    claim: str
    what: str
    figure: Callable[[Record], Figure]
    of: str = "samples"
