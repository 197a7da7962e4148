"""Words that messages and tables have in common."""

from __future__ import annotations

import math

MISSING = "not recorded"


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural.

    Examples:
        >>> counted(1, "batch"), counted(0, "batch"), counted(2, "smoothed image"), counted(3, "epoch")
        ('1 batch', '0 batches', '2 smoothed images', '3 epochs')
    """
    ending = "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{number} {noun}{ending * (number != 1)}"


def label_kind(kind: str) -> str:
    """Return the name of a kind of labels in texts.

    Examples:
        >>> label_kind("onehot"), label_kind("mixup")
        ('one-hot', 'mixup')
    """
    return {"onehot": "one-hot"}.get(kind, kind)


def duration(seconds: float) -> str:
    """Return a time as a text in a suitable unit, from milliseconds to hours.

    Examples:
        >>> duration(0.0123), duration(90), duration(7200)
        ('12 ms', '90 s', '2.0 h')
    """
    if math.isnan(seconds):
        return MISSING
    if seconds < 1:
        return f"{float(f'{1000 * seconds:.2g}'):g} ms"
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
