"""Write the table of the book's scale for restored images: three words, their limits, and the reasons."""

from __future__ import annotations

from gradleak.metrics import SCALE

# The reason of each limit. `{levels}` is the root-mean-square error of a pixel at the limit, of 255 levels.
REASONS = {
    "recognisable": "The error of a pixel is about {levels} of 255 levels. A flat image in the private image's mean "
    "colour shows nothing, and its mean PSNR is lower ({page}`gradinversion`).",
    "indistinguishable": "The error is about {levels} levels, which can hardly be seen.",
    "exact": "The error is about {levels} levels: rounded to whole levels, most pixels are those of the private image.",
}


def text() -> str:
    """Return the table in Markdown."""
    lines = [
        f"| {word} | {least:.0f} dB | {REASONS[word].format(levels=f'{levels(least):.2g}', page='{page}')} |"
        for word, least in SCALE.items()
    ]
    head = ":::{table} Words for the quality of a restored image.\n:name: tab-scale\n:class: gradleak-table\n\n"
    return head + "\n".join(["| word | least PSNR | reason |", "| --- | ---: | --- |", *lines]) + "\n:::\n"


def levels(decibels: float) -> float:
    """Return the root-mean-square error of a pixel, of 255 levels, at a PSNR of `decibels`."""
    return 255 * 10 ** (-decibels / 20)
