"""Read a transcript from a gradient that was changed by noise, rounding, dropped entries or signs.

The change has the same size in all rows, so rows are not rescaled. It has full rank, so the span of the steps is
estimated by the largest singular values. Similar steps have a singular value that may be smaller than those of the
noise. So spans of all sizes are tried, and in each one the nearest word is taken at every step. Every prefix of these
chains is a candidate. The steps of the true transcript explain nearly as much of the gradient as any vectors can.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gradleak.arguments import checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Leak
from gradleak.models.recogniser import START
from gradleak.sequences.observed import FIRST
from gradleak.sequences.transcripts import Decoder, Node, Transcripts, transcripts_of

# Largest span, and so the most steps, if the number of steps is unknown.
MOST = 40
# The best transcript must fit CLEAR times better than the second. The search stops at a transcript that fits by PLAIN.
CLEAR, PLAIN = 1.5, 1e4
# Sizes of spans that are tried before the search may stop.
TOGETHER = 10


@checked_arguments()
def read_defended(
    leak: Leak, start: int = START, *, steps: int | None = None, vocabulary: Vocabulary | None = None
) -> Transcripts:
    """Return one utterance's transcript from a recogniser's gradient that a defence has changed.

    At every step the reader takes the word whose input lies nearest to the gradient's row span. The status is never
    "unique"; it is "failed" if another transcript fits nearly as well.

    Args:
        leak: The gradients of the decoder's first layer.
        start: The token that the decoder reads first.
        steps: The number of the decoder's steps, with the step of the end mark. If it is not given, transcripts of all
            lengths compete.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak import defenses
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> noise = defenses.gaussian(1e-5, torch.Generator().manual_seed(0))
        >>> leak = observe_speech(recogniser("small", 40), [speech], [[7, 12, 9, 2]], defense=noise)
        >>> read_defended(leak).tokens
        [[7, 12, 9]]
    """
    if steps is not None and steps < 1:
        raise InputError(f"the decoder makes at least one step; got {steps}")
    # Cast to float64, so that the rounding limit does not depend on the type in which the gradient was sent.
    leak = replace(leak, gradients={name: leak.gradient(name).double() for name in FIRST})
    gradient = leak.joined(FIRST)
    values, vectors = torch.linalg.eigh(gradient.T @ gradient)
    energies, directions = values.flip(0).clamp(min=0), vectors.flip(1)
    least = steps or 1
    sizes = range(least, min(max(MOST, least), len(energies)) + 1)
    best: dict[tuple[int, ...], tuple[float, Node]] = {}
    for size in sizes:
        for fit, node in _chained(Decoder(leak, directions[:, :size]), energies, directions, start):
            if steps in (None, len(node.words) + 1) and (node.words not in best or fit > best[node.words][0]):
                best[node.words] = fit, node
        tried = size + 1 - least
        if tried % TOGETHER == 0 and max(fit for fit, _ in best.values()) > PLAIN:
            break
    (fit, node), *others = sorted(best.values(), key=lambda candidate: -candidate[0])
    failed = bool(others) and fit < CLEAR * others[0][0]
    reason = "other words fit nearly as well" if failed else "the gradient was changed: the nearest words are read"
    return transcripts_of([node], ["failed" if failed else "ambiguous"], [reason], len(node.words) + 1, vocabulary)


def _chained(decoder: Decoder, energies: Tensor, directions: Tensor, start: int) -> list[tuple[float, Node]]:
    """Return the transcripts of the nearest words in a span, from one step to the span's dimension, and their fits.

    A fit is A / B. A is the distance of the nearest word after the last, divided by the distance of the worst word
    from the span. B is the unexplained share of the part of the gradient that the same number of vectors can explain at
    best. The squared singular values `energies` (K,) belong to the `directions` (K, K), in descending order.
    """
    node = decoder.start(start)
    nodes, behind = [], []
    for _ in range(decoder.rank):
        nodes.append(replace(node, miss=max(node.miss, decoder.rounding)))
        near, missed = decoder.nearest(node.state[0], 2)
        miss, other = sorted(missed.tolist())
        behind.append(miss)
        node = decoder.after(node, int(near[missed.argmin()]), miss, other)
    basis = torch.linalg.qr(torch.stack([node.read for node in nodes], dim=1))[0]
    explainable = energies[: len(nodes)].cumsum(0).clamp(min=torch.finfo(energies.dtype).tiny)
    explained = (energies @ (directions.T @ basis).square()).cumsum(0) / explainable
    unexplained = (1 - explained).clamp(min=decoder.rounding).tolist()
    return [(after / node.miss / rest, node) for node, after, rest in zip(nodes, behind, unexplained, strict=True)]
