"""The box with which a page opens: its finding, the key number beside the paper's, and a bar of the verdicts."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from gradleak.claims import rounding
from gradleak.claims import shown as words
from gradleak.claims.judging import Line
from gradleak.show.provenance import Shown
from gradleak.show.summary import Summary
from gradleak.wording import counted

NOTHING = "This page is not recorded yet, so it has no finding. What follows is drawn from this very run."


@dataclass(frozen=True)
class Opening:
    """The box of a page.

    Attributes:
        shown: The run that the page shows.
        judged: The page's claims with their judgements.
        summary: What the page found, read from the recorded run; None if nothing is recorded.
    """

    shown: Shown
    judged: Sequence[Line]
    summary: Summary | None

    @property
    def sentence(self) -> str:
        """The finding in one sentence."""
        return self.summary.sentence if self.summary else NOTHING

    @property
    def numbers(self) -> list[tuple[str, str]]:
        """The key number and the numbers beside it, each as (number, what it is)."""
        if self.summary is None:
            return []
        line = next(line for line in self.judged if line.claim.id == self.summary.claim)
        source = "our own claim" if line.claim.ours else f"in the paper ({line.claim.place})"
        numbers = [
            (line.recorded.text_and_spread, f"here: {self.summary.what}"),
            (words.published(line.claim), source),
        ]
        if line.recorded.count:
            numbers.append((f"{line.recorded.count:,}", f"{self.summary.of} behind our number"))
        if not self.shown.recorded and line.fresh.value is not None:
            numbers.append((line.claim.formatted(line.fresh.value), f"in this run (n = {line.fresh.count:,})"))
        return numbers

    @property
    def note(self) -> str:
        """Which run the page shows, and if it is the recorded run, what is known of other machines."""
        if not self.shown.recorded:
            return self.shown.note
        machines = {machine.name for machine in self.shown.machines} | rounding.machines(self.shown.study)
        moved = sum(bool(rounding.verdicts(line.claim.id)) for line in self.judged)
        depending = f"{counted(moved, 'verdict')} depend{'s' * (moved == 1)}" if moved else "no verdict depends"
        return f"{self.shown.note} Run on {counted(len(machines), 'kind')} of machine; {depending} on rounding."

    def _repr_markdown_(self) -> str:
        parts = [
            "::::{div} gradleak-answer",
            f"{{.gradleak-finding}}\n{self.sentence}",
            f"```{{raw}} html\n{self._figures}\n```",
            f"{{.gradleak-notes}}\n{self.note} All verdicts: {{doc}}`scoreboard </book/scoreboard>`.",
            "::::",
        ]
        return "\n\n".join(parts) + "\n"

    def _repr_html_(self) -> str:
        sentence, note = html.escape(self.sentence), html.escape(self.note)
        return f'<div class="gradleak-answer"><p><b>{sentence}</b></p>{self._figures}<p>{note}</p></div>'

    def __repr__(self) -> str:
        numbers = "; ".join(f"{number} {what}" for number, what in self.numbers)
        return "\n".join(filter(None, [self.sentence, numbers, words.tally(self.judged)]))

    @property
    def _figures(self) -> str:
        """The numbers and the bars in HTML."""
        tiles = "".join(
            f"<div><b>{html.escape(number)}</b><span>{html.escape(what)}</span></div>" for number, what in self.numbers
        )
        numbers = f'<div class="gradleak-numbers">{tiles}</div>' if tiles else ""
        return numbers + words.bars("The paper’s claims", "Our own claims", self.judged)
