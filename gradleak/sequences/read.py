"""Read whole sentences, in their order of words, from one gradient of a language model or a causal classifier.

If every sentence's gradient is clipped separately, the sentences have weights that are not whole numbers. If the last
layer's gradient is not sent, there are no counts at all. In both cases the layers before it still have the same spans,
which give the prefixes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from gradleak.answers import Answer
from gradleak.answers import ReadingStatus as Status
from gradleak.arguments import checked_arguments
from gradleak.cases import Attack, Case
from gradleak.data.text import Vocabulary
from gradleak.errors import InputError
from gradleak.leak import Gradients, Leak, observe
from gradleak.losses import PADDING
from gradleak.models.language import batch_of
from gradleak.sequences import classified, recurrent, transformers
from gradleak.sequences.counts import Counts, count
from gradleak.sequences.recognised import Model, recognise, tokens_of
from gradleak.sequences.tree import Tree

# Most prefixes that are searched, because their counts are a linear system with as many unknowns.
MOST = 4000
# Largest relative error, in any tensor, between the gradient of the sentences read and the observed gradient.
SAME = 1e-3
# For tensors whose norm is below this share of the whole gradient's norm, the error is relative to that share.
SMALL = 1e-3
# Readings in which last words are corrected.
ROUNDS = 5
# Entries of a gradient that are compared at a time.
PART = 131_072
# Why sentences are not certain that begin with a repeated word, for a model without positions.
REPEATED = "a word that is repeated from the beginning may be repeated more often: the gradient is the same"


@dataclass(frozen=True)
class Sentences:
    """The sentences of a batch and their counts.

    A batch and the same batch twice have the same mean gradient, so a gradient gives counts only up to a common factor.
    The least counts are taken if their sum is the batch size. If the batch size is a multiple of that sum, the counts
    are multiplied, and the status is "ambiguous": no part of the gradient shows that no sentence lacks targets.

    Without an end mark, words behind a sentence's last target leave no trace, and are not read.

    Attributes:
        tokens: The tokens of each different sentence, without its start and end marks if they are known.
        counts: How often each sentence was in the batch.
        status: "unique" if these sentences have the observed gradient, and no other batch of this size has it, whether
            or not all of its positions have targets; "ambiguous" if others may explain the gradient too; "failed" if no
            sentences were found that explain it.
        reason: The reason for the status.
        labels: The label of each sentence (N, C), if the model classifies texts. A sentence with two labels then occurs
            twice in `tokens`.
        texts: The sentences as text, if a vocabulary was given.
        total: The number of targets in the batch: tokens with end marks, or the texts of a classifier.
        factor: The number by which the sentences' gradient is multiplied to be closest to the observed gradient.
        misfit: The relative error of the multiplied gradient, in the tensor where the error is largest.
        prefixes: The number of prefixes that lie in the row spans of all layers' gradients.
        rank: The rank of the gradient of the first recurrent or Linear layer.
    """

    tokens: list[list[int]]
    counts: list[int]
    status: Status
    reason: str
    labels: Tensor | None = None
    texts: list[str] | None = None
    total: int = 0
    factor: float = 1.0
    misfit: float = float("nan")
    prefixes: int = 0
    rank: int = 0

    @property
    def answers(self) -> tuple[Answer, ...]:
        """The answer for the batch."""
        labels = None
        if self.labels is not None:
            labels = self.labels.repeat_interleave(torch.tensor(self.counts, device=self.labels.device), dim=0)
        return (Answer(self.status, self.reason, labels=labels, sentences=self.all() if self.tokens else None),)

    def all(self) -> list[list[int]]:
        """Return all sentences of the batch, sorted, with repeated sentences repeated."""
        return sorted(sentence for sentence, times in zip(self.tokens, self.counts, strict=True) for _ in range(times))


@checked_arguments()
def read_sentences(
    leak: Leak,
    start: int | None = 1,
    *,
    end: int | None = 2,
    vocabulary: Vocabulary | None = None,
    words: Sequence[int] | None = None,
    most: int = MOST,
) -> Sentences:
    """Read the sentences of a batch from the gradient of a language model, or of a causal model that classifies texts.

    The model is an Embedding, LSTM or GRU layers and a Linear layer, or a causal transformer, of this package or of
    another one, such as GPT-2 and LLaMA from `transformers`. In training, the model reads the start mark and a
    sentence's words, and predicts the words and the end mark. No word equals the end mark. Without marks it reads all
    words of a sentence but the last, and predicts all but the first. A classifier, such as GPT-2 with a last layer for
    classes, reads all words, and predicts the class at the last one.

    Args:
        leak: The gradients of one step, with those of the last layer. The loss is the mean over all positions that have
            a target, or over all texts. A status of "unique" assumes that the leak's batch size is right, and that the
            labels of texts are classes.
        start: The token before every sentence; None if sentences begin with any word, for transformers alone.
        end: The token after every sentence; None if sentences end with any word, as those of a classifier always do.
        vocabulary: Turns tokens into texts.
        words: The tokens to try. By default these are the tokens whose rows of the embedding's gradient are not zero,
            and then all tokens if those explain nothing.
        most: The number of prefixes at which the search gives up.

    Raises:
        InputError: The model has a module of another kind, which the message names, or a gradient is missing.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.language import build_language_model
        >>> model = build_language_model("lstm", pieces=50, width=32)
        >>> found = read_sentences(observe(model, *batch_of([[7, 8, 9], [7, 12]], start=1, end=2), head="head"))
        >>> found.tokens, found.counts, found.status
        ([[7, 8, 9], [7, 12]], [1, 1], 'unique')
    """
    model = _model(leak)
    pieces = len(model.embedding)
    if start is None and isinstance(model.layers[0], recurrent.Layer):
        raise InputError("the sentences of recurrent layers are read from the start mark: give `start`")
    for mark, name in ((start, "start"), (end, "end")):
        if mark is not None and not 0 <= mark < pieces:
            raise InputError(f"{name} must be one of the model's {pieces} tokens; got {mark}")
    for parameter in (model.head_weight, model.head_bias):
        if parameter is not None and parameter not in leak.gradients:
            raise InputError(
                f"the gradient of '{parameter}' is not sent: counts are read from it (read_prefixes asks none)"
            )
    failed = Sentences([], [], "failed", "")
    for tried in _tried(leak, model, words):
        # Rounding errors are proportional to a row's length; added noise is not.
        for equalise in (True, False):
            sentences = _read(leak, model, tried, start, end, equalise, most)
            if sentences.status != "failed":
                return replace(
                    sentences,
                    texts=[vocabulary.decode(sentence) for sentence in sentences.tokens] if vocabulary else None,
                )
            failed = failed if failed.reason else sentences
    return failed


@checked_arguments()
def read_prefixes(
    leak: Leak, start: int | None = 1, *, words: Sequence[int] | None = None, most: int = MOST
) -> list[list[int]]:
    """Return the longest prefixes of sentences that a language model's gradient shows, sorted.

    These are all sentences, except those with which another sentence begins. Some prefixes may be false,
    because they lie in the gradients' row spans by chance; there is no certificate. The list is empty if the first
    layer's gradient has full rank, or if more than `most` prefixes lie in the spans.

    Args:
        leak: The gradients of one step.
        start: The token before every sentence; None if sentences begin with any word, for transformers alone.
        words: The tokens to try; all by default.
        most: The number of prefixes at which the search gives up.

    Examples:
        >>> from gradleak import observe
        >>> from gradleak.models.language import batch_of, build_language_model
        >>> model = build_language_model("lstm", pieces=50, width=32)
        >>> read_prefixes(observe(model, *batch_of([[7, 8, 9], [7, 12]]), head="head"))
        [[7, 8, 9], [7, 12]]
    """
    model = _model(leak)
    every = torch.arange(len(model.embedding), device=model.embedding.device)
    tried = every if words is None else tokens_of(model, words)
    trees = [model.grow(leak, tried, start, equalise=equalise, most=most).tree for equalise in (True, False)]
    # With rounding errors alone, scaling rows to one length gives more prefixes; added noise hides the short rows.
    tree = max((tree for tree in trees if tree is not None), key=len, default=None)
    if tree is None or len(tree) < 2:
        return []
    ends = torch.ones_like(tree.words, dtype=torch.bool)
    ends[tree.parents[tree.parents >= 0]] = False
    return sorted(_words(tree, node, start) for node in ends.nonzero()[:, 0].tolist())


def _model(leak: Leak) -> Model:
    leak.check_one_step("reading sentences")
    longest = leak.input_shape[0] if leak.input_shape is not None and len(leak.input_shape) == 1 else None
    return recognise(leak.model, leak.head, longest=longest)


def _doubled(sentence: list[int], start: int | None) -> bool:
    """Return whether a sentence, with its start mark if known, begins with the same word twice."""
    first = sentence[:2] if start is None else [start, *sentence[:1]]
    return len(first) == 2 and first[0] == first[1]


def _words(tree: Tree, node: int, start: int | None) -> list[int]:
    """Return the words of a prefix without the start mark."""
    return tree.path(node)[start is not None :]


def _tried(leak: Leak, model: Model, words: Sequence[int] | None) -> list[Tensor]:
    """Return the sets of words to try, in this order."""
    everything = torch.arange(len(model.embedding), device=model.embedding.device)
    if words is not None:
        return [tokens_of(model, words)]
    if model.tied or model.embedding_name not in leak.gradients:
        return [everything]
    present = (leak.gradients[model.embedding_name] != 0).any(dim=1).nonzero()[:, 0]
    return [everything] if len(present) == len(everything) else [present, everything]


def _read(
    leak: Leak, model: Model, words: Tensor, start: int | None, end: int | None, equalise: bool, most: int
) -> Sentences:
    grown = model.grow(leak, words, start, equalise=equalise, most=most)
    failed = Sentences([], [], "failed", "", rank=grown.rank)
    if grown.tree is None or len(grown.tree) == 0:
        return replace(failed, reason=grown.reason)
    tree = grown.tree
    failed = replace(failed, prefixes=len(tree))
    if model.classifies:
        return _classified(leak, model, tree, start, failed)
    # With rounding alone all rows have the same relative error and equal weight; with noise long rows are more precise.
    solved = (count(tree, model, leak.gradients, end, equalise=same) for same in (True, False))
    counts = _each_once(tree, grown.least, leak.batch_size) if end is None else None
    counts = counts or next(filter(None, solved), None)
    if counts is None:
        return replace(failed, reason=f"no whole numbers of passes through {len(tree)} prefixes give the gradient")
    # Of the passes through a prefix, those that do not go on end there.
    later = tree.parents >= 0
    ended = counts.passes.index_add(0, tree.parents[later], counts.passes[later], alpha=-1)
    if bool((ended < 0).any()):
        return replace(failed, reason="more sentences go on behind a prefix than reach it")
    nodes = (ended > 0).nonzero()[:, 0].tolist()
    if not nodes:
        return replace(failed, reason="no sentence ends")
    # Last words are found from a first reading with any of them, which is not compared.
    silent: frozenset[tuple[int, ...]] = frozenset()
    for silent in _silent(tree, model, leak.gradients, counts, end):
        lasts = None if end is not None else [{0: int(ended[node])} for node in nodes]
        total = counts.total - len(silent)
        for number in range(ROUNDS):
            sentences = sorted(_ending(tree, nodes, ended, lasts, start))
            tokens, times = [sentence for sentence, _ in sentences], [number for _, number in sentences]
            own = _gradients(leak, tokens, times, start, end, silent)
            factor, misfit = _compared(leak, own) if lasts is None or number else (1.0, math.inf)
            if lasts is None or misfit < SAME:
                break
            moved = total * (own[model.head_weight].double() - leak.gradients[model.head_weight])
            lasts = _last_words(moved, tree.features[nodes], lasts)
        if misfit < SAME:
            break
    unsure = "" if counts.known else "other counts of the same prefixes give the same gradient"
    if not model.placed and any(_doubled(sentence, start) for sentence in tokens):
        unsure = REPEATED
    found = replace(failed, tokens=tokens, counts=times, total=counts.total, factor=factor, misfit=misfit)
    return _judged(found, leak.batch_size, unsure, scaled=end is not None)


def _classified(leak: Leak, model: Model, tree: Tree, start: int | None, failed: Sentences) -> Sentences:
    """Return the texts of a classifier's batch among the prefixes of a tree."""
    texts = classified.texts_of(tree, leak)
    if texts is None or not texts.nodes:
        reason = f"the last layer's gradient does not show which of {len(tree)} prefixes are texts"
        return replace(failed, reason=reason)
    order = sorted(range(len(texts.nodes)), key=lambda place: tree.path(texts.nodes[place]))
    read, labels = [tree.path(texts.nodes[place]) for place in order], texts.labels[order]
    # A batch and its multiples have the same gradient.
    times = [texts.counts[place] // math.gcd(*texts.counts) for place in order]
    factor, misfit = _compared(leak, classified.gradients(leak, read, labels, times))
    unsure = REPEATED if not model.placed and any(len(text) == 1 for text in read) else texts.unsure
    found = replace(
        failed, tokens=[text[start is not None :] for text in read], counts=times, labels=labels, total=sum(times),
        factor=factor, misfit=misfit,
    )  # fmt: skip
    return _judged(found, leak.batch_size, unsure)


def _judged(found: Sentences, size: int, unsure: str, *, scaled: bool = False) -> Sentences:
    """Return sentences with their status, and with counts for a batch of a size.

    Args:
        found: The sentences with their least counts, and how their gradient compares with the observed one.
        size: The batch size.
        unsure: Why other sentences may have the same gradient, "" if no others do.
        scaled: Whether the sentences are the same at any scale of the gradient.
    """
    total, factor, misfit = found.total, found.factor, found.misfit
    # A sentence that the model predicts with certainty has no gradient, and it lowers the mean over targets. So the
    # counts are multiplied only if the observed scale shows that no target is missing.
    multiple = max(1, size // sum(found.counts)) if size % sum(found.counts) == 0 else 1
    multiple = multiple if abs(factor - 1) * (multiple * total + 1) < 0.5 else 1
    times = [multiple * number for number in found.counts]
    failed = replace(found, tokens=[], counts=[], labels=None, total=0, factor=1.0, misfit=math.nan)
    if not misfit < 1:
        return replace(failed, reason=f"the sentences' own gradient is another: it misses by {misfit:.1g} of its size")
    reason = ""
    if not misfit < SAME:
        reason = f"the sentences' own gradient is the one seen but for {misfit:.1g} of its size"
    elif sum(times) != size:
        reason = (
            f"the counts make {sum(times)} sentences of a batch of {size}: "
            "each has a weight of its own, or others leave no trace"
        )
    elif not scaled and not abs(factor - 1) * (total + 1) < 0.5:
        reason = f"the gradient is {factor:.6g} times that of the sentences: others leave no trace"
    elif unsure:
        reason = unsure
    elif multiple > 1:
        reason = (
            f"a batch of {size // multiple} with the same shares of sentences has the same gradient: "
            "only the batch size gives their number"
        )
    status: Status = "ambiguous" if reason else "unique"
    reason = reason or "no other prefixes and counts give this gradient"
    return replace(found, counts=times, total=multiple * total, status=status, reason=reason)


def _silent(
    tree: Tree, model: Model, gradients: Gradients, counts: Counts, end: int | None
) -> Iterator[frozenset[tuple[int, ...]]]:
    """Yield the prefixes that may have no target: none, and then those that the last layer's gradient does not show.

    A prompt has no targets if only the answer to it is learnt.
    """
    yield frozenset()
    if end is None and bool((counts.passes == 1).any()):
        shown = next(filter(None, (count(tree, model, gradients, end, equalise=same) for same in (True, False))), None)
        if shown is not None and bool((shown.passes == 0).any()):
            yield frozenset(tuple(tree.path(node)) for node in (shown.passes == 0).nonzero()[:, 0].tolist())


def _each_once(tree: Tree, least: int, size: int) -> Counts | None:
    """Return the counts if the number of prefixes proves that each of `size` sentences ends at a leaf of its own.

    The batch has at least as many different prefixes as the rank of a layer's gradient, and all of them are in the
    tree. So if the tree has no others, every leaf is the end of a sentence.
    """
    leaves = torch.ones_like(tree.words, dtype=torch.bool)
    leaves[tree.parents[tree.parents >= 0]] = False
    if len(tree) != least or int(leaves.sum()) != size:
        return None
    passes = torch.zeros_like(tree.words)
    for leaf in leaves.nonzero()[:, 0].tolist():
        passes[tree.nodes(leaf)] += 1
    return Counts(passes, True, int(passes.sum()))


def _ending(
    tree: Tree, nodes: Sequence[int], ended: Tensor, lasts: list[dict[int, int]] | None, start: int | None
) -> Iterator[tuple[list[int], int]]:
    """Yield the sentences that end after prefixes, and how often; `lasts` counts the last words after each prefix."""
    for place, node in enumerate(nodes):
        words = _words(tree, node, start)
        if lasts is None:
            yield words, int(ended[node])
        else:
            yield from (([*words, word], number) for word, number in lasts[place].items())


def _last_words(moved: Tensor, features: Tensor, lasts: list[dict[int, int]]) -> list[dict[int, int]]:
    """Return how often each word is the last target after each of some prefixes.

    A last target y after a prefix with the feature s contributes −e_y sᵀ / M to the last layer's gradient. If this
    layer is tied, its gradient is also the embedding's, which depends less on the last targets. So another reading with
    the targets that are returned is closer.

    Args:
        moved: M times the difference (C, I) of the gradient of a reading and the observed one.
        features: The features after these prefixes (N, I).
        lasts: The last words of this reading.
    """
    shown = moved @ torch.linalg.pinv(features)
    found = []
    for column, words in zip(shown.T, lasts, strict=True):
        for word, number in words.items():
            column[word] += number
        left, counted = sum(words.values()), dict[int, int]()
        for word in column.argsort(descending=True)[:left].tolist():
            counted[word] = min(left, max(1, round(float(column[word]))))
            left -= counted[word]
            if left == 0:
                break
        found.append(counted)
    return found


def _gradients(
    leak: Leak,
    tokens: list[list[int]],
    times: list[int],
    start: int | None,
    end: int | None,
    silent: Collection[tuple[int, ...]] = (),
) -> Gradients:
    """Return the gradients of sentences, with no target after the prefixes `silent`."""
    sentences = [own for own, number in zip(tokens, times, strict=True) for _ in range(number)]
    device = next(leak.model.parameters()).device
    inputs, targets = batch_of(sentences, start, end, device=device)
    for row, sentence in enumerate(sentences if silent else ()):
        for place in range(len(sentence) - 1):
            if tuple(sentence[: place + 1]) in silent:
                targets[row, place] = PADDING
    return observe(leak.model, inputs, targets, head=leak.head).gradients


def _compared(leak: Leak, own: Gradients) -> tuple[float, float]:
    """Return the best scale of gradients, and their largest relative error in any tensor."""
    device = next(leak.model.parameters()).device
    pairs = [(seen, own[name]) for name, seen in leak.gradients.items()]
    # The inner products (2, 2) of each two tensors with themselves and each other.
    zero = torch.zeros(2, 2, dtype=torch.float64, device=device)
    products = torch.stack([sum((part @ part.T for part in _parts(*pair)), zero) for pair in pairs])
    power = float(products[:, 1, 1].sum())
    factor = float(products[:, 0, 1].sum()) / power if power else 1.0
    sizes = products[:, 0, 0].sqrt().tolist()
    # A tensor whose gradient is zero in theory, such as a key's bias, holds only rounding errors.
    least = SMALL * math.hypot(*sizes) or 1.0
    squares = (sum(float((seen - factor * mine).square().sum()) for seen, mine in _parts(*pair)) for pair in pairs)
    return factor, max(math.sqrt(square) / max(size, least) for square, size in zip(squares, sizes, strict=True))


def _parts(seen: Tensor, mine: Tensor) -> Iterator[Tensor]:
    """Yield parts (2, N) of two tensors in float64, because copies of a whole large layer are slow."""
    for parts in zip(seen.flatten().split(PART), mine.flatten().split(PART), strict=True):
        yield torch.stack([part.double() for part in parts])


def _why_not(case: Case) -> str:
    if not case.subject.sequence and not case.subject.texts:
        return "the network neither predicts the next token at every position nor is a causal one that classifies texts"
    if not case.plain:
        return f"it is made for the cross-entropy; this is {type(case.loss).__name__}"
    if case.marks is None and any(isinstance(module, nn.RNNBase) for module in case.leak.model.modules()):
        return "sentences have no start and end mark in common"
    return transformers.unsent(case.leak)


def _attack(case: Case) -> Answer:
    start, end = (case.subject.sequence and case.marks) or (None, None)
    return case.without_rounding(read_sentences(case.leak, start, end=end).answers[0])


ATTACK = Attack(
    "sentences",
    page="sentences",
    finds=("sentences", "labels"),
    needs="all gradients of a recurrent model and the start and end mark, or all gradients of a causal transformer",
    refused=_why_not,
    run=_attack,
    remedy="noise; more tokens in a batch than the layers are wide",
    memory=transformers.memory,
)
