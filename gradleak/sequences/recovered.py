"""Read a transcript from the last layer's gradient: recover all steps first, then put them in order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak.answers import ReadingStatus as Status
from gradleak.data.text import Vocabulary
from gradleak.labels import recover_batch
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START
from gradleak.sequences.output import Ordered, decoder_of

# A step fits if the relative distance of its recovered state from the decoder's state is below FITS. The choice is
# certain if the next nearest step is APART times farther away.
FITS, APART = 1e-2, 10.0


def read_recovered(leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None) -> Ordered:
    """Return one utterance's transcript from the gradient of a recogniser's last layer alone.

    The bag of words gives the labels up to their number and order, so `recover_batch` gives every step's
    [state; context] and word. The decoder's first state follows from the start token alone. The step with this state
    has the first word and its context, which give the next state. `read_output` gives the same without `recover_batch`.

    Args:
        leak: The gradient of the last layer.
        start: The token that the decoder reads first.
        end: The token after a transcript.
        vocabulary: Turns tokens into texts.
    """
    embedding, cells = decoder_of(leak.model)
    bag = torch.tensor(sorted(rlg(leak.weight_gradient)), dtype=torch.long)
    if len(bag) == 0:
        return Ordered([], None if vocabulary is None else "", "failed", "the gradient is zero", 0, (1.0, 0.0))
    batch = recover_batch(
        leak.weight_gradient,
        leak.weight,
        labels=F.one_hot(bag, len(leak.weight)).double(),
        bias=leak.bias,
        bias_gradient=leak.bias_gradient,
    )
    tokens, misses = _chained(
        embedding, cells, batch.features[batch.found], batch.labels[batch.found].argmax(dim=1), start
    )
    text = None if vocabulary is None else vocabulary.decode(tokens)
    status: Status = "unique"
    reason = ""
    if batch.status == "failed":
        status, reason = "failed", batch.reason
    elif len(tokens) < len(batch):
        status, reason = "failed", f"{len(tokens)} of {len(batch)} steps follow from one another"
    elif not tokens or tokens[-1] != end:
        status, reason = "ambiguous", "the end mark is not there: words may follow of which the recogniser is sure"
    elif batch.status != "unique" or misses[1] < APART * misses[0]:
        status, reason = "ambiguous", batch.reason or "another step follows nearly as well"
    elif leak.batch_size * leak.local_steps > 1:
        status, reason = "ambiguous", "more than one utterance may have been said"
    return Ordered(tokens, text, status, reason, int(batch.found.sum()), misses)


def _chained(
    embedding: Tensor, cells: Sequence[nn.LSTMCell], features: Tensor, words: Tensor, start: int
) -> tuple[list[int], tuple[float, float]]:
    """Return the words of the steps with `features` (T, I) in the order in which they fit, and the misses."""
    width = cells[0].hidden_size
    tops, contexts = features[:, :width], features[:, width:]
    zeros = tops.new_zeros(1, width)
    states = [(zeros, zeros)] * len(cells)
    word, context = embedding[start], contexts.new_zeros(contexts.shape[1])
    remaining = torch.arange(len(features))
    tokens: list[int] = []
    worst, nearest = 0.0, float("inf")
    while len(remaining):
        following = [cells[0](torch.cat([word, context])[None], states[0])]
        # A higher layer reads the step's own context, so each remaining step gives a different state.
        for cell, before in zip(cells[1:], states[1:], strict=True):
            below, *own = (part.expand(len(remaining), -1) for part in (following[-1][0], *before))
            following.append(cell(torch.cat([below, contexts[remaining]], dim=1), own))
        miss = (following[-1][0] - tops[remaining]).norm(dim=1) / tops[remaining].norm(dim=1)
        place = int(miss.argmin())
        if not miss[place] < FITS:
            break
        other_misses = torch.cat([miss[:place], miss[place + 1 :]])
        worst, nearest = max(worst, float(miss[place])), min([nearest, *other_misses.tolist()])
        states = [
            (state[min(place, len(state) - 1)][None], kept_cell[min(place, len(kept_cell) - 1)][None])
            for state, kept_cell in following
        ]
        tokens.append(int(words[remaining[place]]))
        word, context = embedding[tokens[-1]], contexts[remaining[place]]
        remaining = torch.cat([remaining[:place], remaining[place + 1 :]])
    return tokens, (worst, nearest)
