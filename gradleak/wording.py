"""Word counts, and reword texts that records and trials must keep as they are, where readers see them.

A record's rows hold the reasons and names that its trials wrote, and the digest of a trial covers these texts. They
therefore stay as they are in the code of the trials and in the records; `plain` replaces them only when they are shown.
"""

from __future__ import annotations

import re

# Patterns of recorded texts, and what readers see in their place. The patterns are applied in this order.
_WORDS: tuple[tuple[str, str], ...] = (
    # Why peeling ends.
    (r"\b1 equations for", "1 equation for"),
    (r"for 1 unknowns a channel", "for 1 unknown in each channel"),
    (r"for (\d+) unknowns a channel", r"for \1 unknowns in each channel"),
    (r", joints aside", ", without the entries that residual sums give"),
    (r"(\d+) positions of (\d+) samples in (\d+) channels", r"\1 output positions (B = \2), but only \3 channels"),
    (r"(\d+) positions of (\d+) samples are more than are tried", r"\1 output positions (B = \2) are too many to try"),
    (r"its gradient has rank (\d+), for (\d+) positions", r"its gradient has only rank \1 for \2 output positions"),
    (
        r"(\d+) rows of its gradient for (\d+) positions",
        r"its gradient has only \1 rows that are not zero, for \2 output positions",
    ),
    (r"with its stride too little of its patches overlaps", "its patches overlap too little, because of its stride"),
    (
        r"its patches do not overlap: nothing tells positions and samples apart",
        "its patches do not overlap, so its equations cannot separate the positions",
    ),
    (
        r"its overlapping patches do not tell the positions apart",
        "the overlaps of its patches do not suffice to separate the positions",
    ),
    (
        r"its channels are convolved apart: none holds more than its own kernel's few equations",
        "it convolves groups of channels separately, and a channel has only the few equations of its own kernel",
    ),
    (r"a Linear layer's gradient tells no samples apart", "the gradient of a Linear layer does not separate samples"),
    (r"no on and off of its units explains its gradient", "no choice of active units explains its gradient"),
    (r"none of the 1 samples was found in (\d+) rounds", r"the sample was not found in \1 rounds of the search"),
    (r"none of the (\d+) samples was found in (\d+) rounds", r"none of the \1 samples was found in \2 search rounds"),
    (
        r"1 of 1 samples' maps were not matched at '([^']+)'",
        r"the final search for the image did not reproduce the maps at '\1'",
    ),
    (
        r"(\d+ of \d+) samples' maps were not matched at '([^']+)'",
        r"the final search for the image did not reproduce the maps at '\2' (\1 samples)",
    ),
    # Why a label or an input is not certain.
    (
        r"no scalar gives a label of this shape: another prior, or a gradient that was rescaled",
        "no scalar gives a label of the assumed kind: the kind is wrong, or the gradient was rescaled",
    ),
    (
        r"the gradient's digits leave the label open by (\S+) \(L1\)",
        r"within its rounding errors, the gradient allows labels at an L1 distance of \1",
    ),
    (
        r"the errors p − y that the last layer's gradient gives do not sum to zero \((\S+)\)",
        r"the errors p − y in the last layer's gradient should sum to zero, but their sum is \1 of their absolute sum",
    ),
    # The failures of the published search.
    (r"\blabel nearly predicted\b", "prediction close to the label"),
    (r"\bcertain of one of two\b", "certain of one of the two mixed classes"),
    # The clients that a hunt for wrong certificates draws, and the outcomes.
    (r", plain, spread (\S+)\b", r", default options, logits with SD \1"),
    (r", scale, spread (\S+)\b", r", gradient scale unknown, logits with SD \1"),
    (r", proof, spread (\S+)\b", r", certified by proof, logits with SD \1"),
    (r", bias, spread (\S+)\b", r", with the bias's gradient if there is a bias, logits with SD \1"),
    (r"\bopen with the truth\b", "not certified, truth within the stated error"),
    (r"\bopen without the truth\b", "not certified, truth outside the stated error"),
    (r"\bonehot\b", "one-hot"),
    (r"\b(\d+) of \((\d+),\)", r"batch of \1, \2 inputs each"),
    (r"\b(\d+) of \((\d+), (\d+), (\d+)\)", r"batch of \1, inputs of \2 × \3 × \4"),
    (r"\b1 (feature|sentence|utterance)s\b", r"1 \1"),
    (r"every sentence, as often as it is there", "every sentence, and how often it occurs in the batch"),
    # What counting equations proves in an audit.
    (r"which classes are in the batch is told \(RLG\)", "the attack RLG finds out which classes are in the batch"),
    (r"their words are told apart \(RLG\)", "the attack RLG finds their words"),
    # How a search runs.
    (r"\bwhole steps against (.+), whole steps", r"full steps, against \1, full steps"),
    (r"\bwhole steps", "full steps"),
    # Why an experiment stays on the CPU.
    (
        r"its clients are thousands of tiny networks, one at a time",
        "they attack thousands of tiny networks one after another, which is too little work at a time for a GPU",
    ),
    (r"it measures pictures, and attacks nothing", "they only compare images with each other, without an attack"),
    (r"\bit reads one utterance at a time\b", "they read one utterance at a time"),
    # What an attack needs, and what stops it.
    (r"\bsmall beside\b", "small compared with"),
    (
        r"a model that says what comes next at every place",
        "a model that predicts the next token at every position",
    ),
    (
        r"batches of more samples than the last map's channels hold; pooling by maxima",
        "batches with more positions in the last map than this map has channels; max pooling",
    ),
    (r"batches of more samples than there are equations", "batches with too many samples for the number of equations"),
    (
        r"batches in which classes repeat, noise, or sending no gradient of the last layer",
        "batches in which classes repeat; noise; not sending the last layer's gradient",
    ),
)  # fmt: skip


def counted(number: int, noun: str) -> str:
    """Return a number with a noun in the singular or plural.

    Examples:
        >>> counted(1, "batch"), counted(0, "batch"), counted(2, "smoothed image"), counted(3, "epoch")
        ('1 batch', '0 batches', '2 smoothed images', '3 epochs')
    """
    ending = "es" if noun.endswith(("tch", "s", "x")) else "s"
    return f"{number} {noun}{ending * (number != 1)}"


def plain(text: str) -> str:
    """Return a recorded text in the words that readers see.

    Examples:
        >>> plain("1 equations for 8 unknowns a channel")
        '1 equation for 8 unknowns in each channel'
    """
    for pattern, words in _WORDS:
        text = re.sub(pattern, words, text)
    return text
