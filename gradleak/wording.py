"""Words that messages and tables have in common."""

from __future__ import annotations


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
