"""Read a transcript from the last layer's gradient alone, in closed form.

The gradient is Σ_t (p_t − e_{y_t}) [s_t; c_t]ᵀ, so each [s_t; c_t] is V a for a basis V of its row span. After a known
prefix the decoder computes the state s_t, which gives a and so the context c_t. The word y_t is the one whose next
state lies in the span. With several layers s_t depends on c_t, and a solves as many equations as the state has entries.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gradleak.answers import ReadingStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.data.text import Vocabulary
from gradleak.devices import least_squares
from gradleak.labels.hard.rlg import rlg
from gradleak.leak import Leak
from gradleak.models.recogniser import END, START
from gradleak.sequences.transcripts import Transcripts, decoder_of, single
from gradleak.spans import inputs_span

# A word fits if the relative distance of its state from the span is below FITS. The choice is certain if the next
# nearest word is APART times farther away.
FITS, APART = 1e-2, 10.0
# Gauss-Newton iterations for a decoder with several layers. Convergence is quadratic.
ROUNDS = 8
# Largest relative error between the gradient of the transcript read and the observed gradient.
SAME = 1e-3


@checked_arguments()
def read_output(leak: Leak, start: int = START, *, end: int = END, vocabulary: Vocabulary | None = None) -> Transcripts:
    """Return one utterance's transcript, with its end mark, from the gradient of a recogniser's last layer alone.

    RLG gives the words (dang2021); the decoder's states give their order and repetitions. The transcript is unique if
    its gradient is the observed one, no other word fits at any step, and the last word is the end mark. Otherwise more
    words may follow, because words that the recogniser predicts with certainty have no gradient.

    Args:
        leak: The gradient of the last layer.
        start: The token that the decoder reads first.
        end: The token after a transcript.
        vocabulary: Turns tokens into texts.

    Examples:
        >>> from gradleak.models.recogniser import recogniser
        >>> from gradleak.sequences import observe_speech
        >>> speech = torch.randn(16, 80, generator=torch.Generator().manual_seed(0))
        >>> leak = observe_speech(recogniser("small", 40), [speech], [[7, 12, 9, END]], only=["head.weight"])
        >>> read_output(leak).tokens
        [[7, 12, 9, 2]]
    """
    embedding, cells = decoder_of(leak.model)
    span = inputs_span(leak.weight_gradient).vectors
    steps, width = span.shape[1], cells[0].hidden_size
    if steps == 0:
        return single([], "failed", "the gradient is zero", steps, vocabulary)
    if steps >= width:
        reason = f"the gradient's rank of {steps} leaves no state outside its span"
        return single([], "failed", reason, steps, vocabulary)
    bag = torch.tensor(sorted(rlg(leak.weight_gradient)), dtype=torch.long)
    if len(bag) == 0:
        return single([], "failed", "RLG finds no word in the gradient", steps, vocabulary)
    decoder = _Decoder(embedding, cells, span)
    words, features, misses = decoder.chained(bag, start)
    if len(features) < steps:
        reason = f"{len(features)} of {steps} steps follow from one another"
        return single(words, "failed", reason, steps, vocabulary, misses)
    tokens, misfit = _explained(leak, features)
    status: Status = "ambiguous"
    if tokens[:-1] != words or not misfit < SAME:
        status, reason = "failed", f"the gradient of what was read misses the one that was seen by {misfit:.1g} of it"
    elif misses[1] < APART * misses[0]:
        reason = "another word follows nearly as well"
    elif tokens[-1] != end:
        reason = "the end mark is not there: words may follow of which the recogniser is sure"
    elif leak.batch_size * leak.local_steps > 1:
        reason = "more than one utterance may have been said"
    else:
        status, reason = "unique", ""
    return single(tokens, status, reason, steps, vocabulary, misses)


class _Decoder:
    """A recogniser's decoder and the span (I, S) of its last layer's inputs, [top state; context]."""

    def __init__(self, embedding: Tensor, cells: Sequence[nn.LSTMCell], span: Tensor) -> None:
        self.embedding, self.cells = embedding, cells
        self.layers = [list(cell.parameters()) for cell in cells]
        width = self.layers[0][1].shape[1]
        self.span, self.tops, self.contexts = span, span[:width], span[width:]
        # The map from coordinates in the span to the contribution of the context to each higher layer's gates.
        self.heard = [layer[0][:, width:] @ self.contexts for layer in self.layers[1:]]

    def chained(self, bag: Tensor, start: int) -> tuple[list[int], Tensor, tuple[float, float]]:
        """Return the words that fit one after another, the features (T, I) of their steps, and the misses."""
        zeros = self.tops.new_zeros(1, len(self.tops))
        states = [(zeros, zeros)] * len(self.layers)
        context = self.contexts.new_zeros(len(self.contexts))
        words: list[int] = []
        features: list[Tensor] = []
        worst, nearest = 0.0, float("inf")
        tried = torch.tensor([start])
        while len(features) < self.span.shape[1]:
            inside, following_misses, following = self._following(tried, context, states)
            place = int(following_misses.argmin())
            miss = float(following_misses[place])
            if not miss < FITS:
                break
            other_misses = torch.cat([following_misses[:place], following_misses[place + 1 :]])
            worst, nearest = max(worst, miss), min([nearest, *other_misses.tolist()])
            words.append(int(tried[place]))
            features.append(self.span @ inside[place])
            states = [(state[place][None], cell[place][None]) for state, cell in following]
            context = features[-1][len(self.tops) :]
            tried = bag
        stacked = torch.stack(features) if features else self.span.new_zeros(0, len(self.span))
        return words[1:], stacked, (worst, nearest)

    def _following(
        self, words: Tensor, context: Tensor, before: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]:
        """Return the steps that read each of the `words` (K,) after a context and states.

        Returns:
            The coordinates in the span (K, S), the misses (K,), and all layers' states and cells (K, H).
        """
        inputs = torch.cat([self.embedding[words], context.expand(len(words), -1)], dim=1)
        first = self.cells[0](inputs, tuple(part.expand(len(words), -1) for part in before[0]))
        inside = self.tops.new_zeros(len(words), self.tops.shape[1])
        for _ in range(ROUNDS if self.heard else 1):
            states, slope = self._above(first, inside, before)
            outside = states[-1][0] - inside @ self.tops.T
            inside = inside - least_squares(slope - self.tops, outside[:, :, None])[:, :, 0]
        states, _ = self._above(first, inside, before)
        top = states[-1][0]
        return inside, (top - inside @ self.tops.T).norm(dim=1) / top.norm(dim=1), states

    def _above(
        self, first: tuple[Tensor, Tensor], inside: Tensor, before: Sequence[tuple[Tensor, Tensor]]
    ) -> tuple[list[tuple[Tensor, Tensor]], Tensor]:
        """Return all layers' states at coordinates `inside` (K, S), and the top state's Jacobian there (K, H, S)."""
        states, slope = [first], self.tops.new_zeros(len(inside), *self.tops.shape)
        width = len(self.tops)
        for (weight, *rest), heard, previous in zip(self.layers[1:], self.heard, before[1:], strict=True):
            from_below = weight[:, :width]
            own = previous[0] @ rest[0].T + rest[1] + rest[2]
            gates = (states[-1][0] @ from_below.T + inside @ heard.T + own).requires_grad_()
            after = _cell_after(gates, previous[1])
            # Each entry of a state depends only on its own four gates, so one backward pass gives all derivatives.
            by_gate = torch.autograd.grad(after[0].sum(), gates)[0].unflatten(1, (4, width))
            along = (from_below @ slope + heard) if len(states) > 1 else heard.expand(len(inside), -1, -1)
            slope = torch.einsum("kgh,kghs->khs", by_gate, along.unflatten(1, (4, width)))
            states.append((after[0].detach(), after[1].detach()))
        return states, slope


def _cell_after(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state and the cell (N, H), as nn.LSTMCell computes them from its gates (N, 4H) and the last cell."""
    input_gate, forget_gate, candidate, output_gate = gates.chunk(4, dim=1)
    cell = forget_gate.sigmoid() * cell + input_gate.sigmoid() * candidate.tanh()
    return output_gate.sigmoid() * cell.tanh(), cell


def _explained(leak: Leak, features: Tensor) -> tuple[list[int], float]:
    """Return the words of the steps with these features (T, I), and the relative error of their gradient.

    The gradient is Σ_t (p_t − e_{y_t}) x_tᵀ / T. The features give p_t, and the rest gives e_{y_t}.
    """
    weight, gradient = leak.weight.detach().double(), leak.weight_gradient.double()
    bias = 0 if leak.bias is None else leak.bias.detach().double()
    predicted = (features @ weight.T + bias).softmax(dim=1)
    targets = predicted - len(features) * least_squares(features.T, gradient.T)
    words = targets.argmax(dim=1)
    predicted[torch.arange(len(words)), words] -= 1
    explained = predicted.T @ features / len(features)
    return words.tolist(), float((gradient - explained).norm() / gradient.norm())
