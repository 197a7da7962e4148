"""Sentences from one gradient: whole batches in order, with what may trip a reader, and honest where it fails."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from gradleak import data, defenses
from gradleak.errors import InputError
from gradleak.leak import Leak, observe
from gradleak.losses import PADDING
from gradleak.models.language import batch_of, build_language_model
from gradleak.sequences import read_prefixes, read_sentences
from tests.auditing.networks import Net

PIECES = 40
MODELS = {
    "lstm": ("lstm", 1, False),
    "gru": ("gru", 1, False),
    "two lstm layers": ("lstm", 2, False),
    "two gru layers": ("gru", 2, False),
    "tied lstm": ("lstm", 1, True),
    "tied gru": ("gru", 1, True),
    "transformer": ("transformer", 2, False),
    "tied transformer": ("transformer", 2, True),
}
BATCHES: dict[str, list[list[int]]] = {
    "one": [[5, 6, 7]],
    "shared prefixes": [[5, 6, 7], [5, 6, 8], [5, 6], [5], [9, 6, 7]],
    "identical": [[5, 6, 7], [5, 6, 7], [5, 6, 7], [8, 4]],
    "repeated words": [[5, 5, 5, 5, 5], [6, 6, 5, 5], [5, 6, 5, 6, 5]],
    "empty": [[], [], [5]],
    "only empty": [[]],
    "marks and unknown words inside": [[0, 5, 0], [1, 5], [0]],
    "same words, other orders": [[5, 6, 7, 8], [8, 7, 6, 5], [6, 5, 8, 7]],
}


# With its output tied to its input, an untrained transformer is sure that a word is followed by itself. Where it is, it
# has no error and sends no gradient: nothing can be read, and the reader says so.
SILENT = {("repeated words", "tied transformer")}


def model_of(name: str, pieces: int = PIECES, width: int = 32) -> nn.Module:
    kind, layers, tied = MODELS[name]
    return build_language_model(kind, pieces=pieces, width=width, layers=layers, tied=tied, seed=3)


def leak_of(model: nn.Module, sentences: list[list[int]]) -> Leak:
    return observe(model, *batch_of(sentences))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("batch", BATCHES)
def test_every_batch_is_read(name: str, batch: str) -> None:
    sentences = BATCHES[batch]
    found = read_sentences(leak_of(model_of(name), sentences))
    if (batch, name) in SILENT:
        assert (found.status, found.tokens) == ("failed", [])
        return
    assert found.all() == sorted(sentences), found.reason
    assert found.status in ("unique", "ambiguous")
    assert found.total == sum(map(len, sentences)) + len(sentences)


PROMISED = ["lstm", "gru", "two lstm layers", "two gru layers", "tied gru", "transformer"]


@pytest.mark.parametrize("name", PROMISED)
def test_random_words_are_read_and_promised(name: str) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(2):
        lengths = torch.randint(0, 7, (5,), generator=generator).tolist()
        sentences = [torch.randint(3, PIECES, (length,), generator=generator).tolist() for length in lengths]
        found = read_sentences(leak_of(model_of(name, width=64), sentences))
        assert (found.status, found.all()) == ("unique", sorted(sentences))
        assert found.misfit < 1e-5


def test_a_very_long_sentence_is_read_until_the_span_is_full() -> None:
    generator = torch.Generator().manual_seed(1)
    long = torch.randint(3, PIECES, (50,), generator=generator).tolist()
    model = model_of("lstm")
    found = read_sentences(leak_of(model, [long]))
    assert (found.status, found.tokens) == ("unique", [long])
    # E + H + 1 is 65: with more prefixes than that every vector lies in the span.
    longer = torch.randint(3, PIECES, (90,), generator=generator).tolist()
    beyond = read_sentences(leak_of(model, [longer]))
    assert (beyond.status, beyond.tokens) == ("failed", [])
    assert "full rank" in beyond.reason


def test_false_prefixes_are_counted_out() -> None:
    # More prefixes than the last layer's span has dimensions, of few words: many more lie in the first layer's span.
    generator = torch.Generator().manual_seed(2)
    sentences = [torch.randint(3, 11, (7,), generator=generator).tolist() for _ in range(6)]
    prefixes = {tuple(one[:length]) for one in sentences for length in range(8)}
    found = read_sentences(leak_of(model_of("lstm"), sentences))
    assert found.prefixes > len(prefixes) > 33
    assert (found.status, found.all()) == ("unique", sorted(sentences))


def test_layers_without_biases() -> None:
    recurrent = nn.LSTM(16, 16, bias=False, batch_first=True)
    model = between(nn.Identity(), recurrent, head=nn.Linear(16, PIECES, bias=False))
    found = read_sentences(leak_of(model, [[5, 6, 7], [5, 8]]))
    assert (found.status, found.tokens) == ("unique", [[5, 6, 7], [5, 8]])


@pytest.mark.parametrize("name", ["lstm", "tied gru", "transformer"])
@pytest.mark.parametrize("times", [2, 3])
def test_a_wrong_batch_size_does_not_make_multiples_unique(name: str, times: int) -> None:
    for sentences in ([[5, 6, 7]], [[5, 6], [7]], [[], [5], [5]]):
        leak = leak_of(model_of(name), sentences)
        found = read_sentences(replace(leak, batch_size=times * len(sentences)))
        assert found.all() == sorted(sentences * times)
        assert (found.status, read_sentences(leak).status) == ("ambiguous", "unique")
        assert f"a batch of {len(sentences)} with the same shares" in found.reason


@pytest.mark.parametrize("name", ["lstm", "tied gru", "transformer"])
def test_a_sentence_without_targets_is_not_replaced_by_a_certified_copy(name: str) -> None:
    model = model_of(name)
    for sentences in ([[5, 6, 7]], [[5, 6], [7]]):
        tokens, targets = batch_of([*sentences, *([] for _ in sentences)])
        targets[len(sentences) :] = PADDING
        found = read_sentences(observe(model, tokens, targets))
        assert (found.status, found.tokens) == ("ambiguous", sorted(sentences))


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_a_sentence_of_which_the_model_is_sure_is_not_taken_for_another_again(kind: str) -> None:
    model, sure, other = model_of(kind), [7, 8, 9], [5, 6]
    tokens, targets = batch_of([sure])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        for parameter in model.get_submodule("head").parameters():
            parameter *= 30
    found = read_sentences(leak_of(model, [other, sure]))
    # What it is sure of leaves no trace: the other is read, once, and the mean's factor says that there is more.
    assert (found.status, found.tokens, found.counts) == ("ambiguous", [other], [1])
    assert found.factor == pytest.approx(3 / 7, rel=1e-4)
    again = read_sentences(leak_of(model, [other, other]))
    assert (again.status, again.counts) == ("ambiguous", [2])


@pytest.mark.parametrize("factor", [1e-20, 0.037, 1e15])
def test_the_gradient_may_be_scaled(factor: float) -> None:
    leak = leak_of(model_of("gru"), BATCHES["shared prefixes"])
    scaled = Leak(leak.model, {name: factor * value for name, value in leak.gradients.items()}, leak.head, 5)
    found = read_sentences(scaled, words=range(PIECES))
    assert (found.status, found.all()) == ("unique", sorted(BATCHES["shared prefixes"]))
    assert read_sentences(scaled, words=[5, 6]).status != "unique", "sentences with other words in them are not there"
    assert found.factor == pytest.approx(factor, rel=1e-4)


def test_texts() -> None:
    vocabulary = data.vocabulary("sentences")
    text = "the judge asked for silence twice"
    model = model_of("lstm", pieces=len(vocabulary))
    found = read_sentences(leak_of(model, [vocabulary.encode(text)]), vocabulary=vocabulary)
    assert found.texts == [text]
    unknown = read_sentences(leak_of(model, [vocabulary.encode("a ñandú")]), vocabulary=vocabulary)
    assert (unknown.status, unknown.texts) == ("unique", ["a <unk>and<unk>"])


@pytest.mark.parametrize("name", ["gru", "transformer"])
def test_another_token_may_be_the_start(name: str) -> None:
    sentences = [[5, 6, 7], [9, 5], [6]]
    leak = observe(model_of(name), *batch_of(sentences, start=9))
    found = read_sentences(leak, start=9)
    assert (found.status, found.all()) == ("unique", sorted(sentences))
    assert read_sentences(leak).status == "failed"


@pytest.mark.parametrize("text", ["gaussian/0.0001", "gaussian/0.01", "sign", "prune/0.9", "quantize/8", "half"])
def test_a_changed_gradient_is_never_promised_wrongly(text: str) -> None:
    for seed in range(3):
        sentences = [[5, 6, 7, 8], [9, 6], [5, 10, 11]]
        clean = leak_of(model_of("lstm"), sentences)
        sent = defenses.named(text, generator=torch.Generator().manual_seed(seed))(clean.gradients)
        found = read_sentences(Leak(clean.model, sent, clean.head, clean.batch_size))
        assert found.status != "unique" or found.all() == sorted(sentences)


def test_another_models_gradient_is_not_explained() -> None:
    leak = leak_of(model_of("lstm"), BATCHES["shared prefixes"])
    other = build_language_model("lstm", pieces=PIECES, width=32, seed=4)
    assert read_sentences(Leak(other, leak.gradients, leak.head, 5)).status == "failed"


def between(layer: nn.Module, recurrent: nn.Module, **layers: nn.Module) -> Net:
    """Return a recurrent model with a layer before the last one."""
    layers = {"embedding": nn.Embedding(PIECES, 16), "head": nn.Linear(16, PIECES)} | layers
    return Net(
        lambda net, tokens: net.head(net.between(net.recurrent(net.embedding(tokens))[0])),
        recurrent=recurrent, between=layer, **layers,
    )  # fmt: skip


def mixed(mix: nn.Module) -> Net:
    """Return a model of Linear layers with a layer before the first that mixes positions."""
    layers = {"embedding": nn.Embedding(PIECES, 16), "first": nn.Linear(16, 16), "head": nn.Linear(16, PIECES)}
    return Net(lambda net, tokens: net.head(net.first(net.mix(net.embedding(tokens))).relu()), mix=mix, **layers)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (between(nn.LayerNorm(16), nn.LSTM(16, 16, batch_first=True)), "'between' is a LayerNorm"),
        (between(nn.Identity(), nn.RNN(16, 16, batch_first=True)), "'recurrent' is a RNN"),
        (mixed(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)), "Net is not causal"),
        (mixed(Net(lambda _, words: words + words.mean(dim=1, keepdim=True))), "Net is not causal"),
        (mixed(Net(lambda _, words: words.cumsum(dim=1))), "'first' reads more than one word and its position"),
    ],
)
def test_what_is_not_read_is_refused_by_name(model: nn.Module, message: str) -> None:
    leak = leak_of(model.eval(), [[5, 6]])
    with pytest.raises(InputError, match=message):
        read_sentences(leak)


# --------------------------------------------------------------------------------------------------- ends of prefixes
PRIVATE = [[7, 8, 9, 10], [7, 11, 12], [20, 21, 22, 23, 24]]


def weighted(kind: str, noise: float = 0.0) -> Leak:
    """Return the mean of three sentences' gradients, each clipped by itself, with noise."""
    model = build_language_model(kind, pieces=60, width=32, layers=1, seed=1)
    own = [defenses.clip(0.3)(observe(model, *batch_of([one])).gradients) for one in PRIVATE]
    sent = defenses.gaussian(noise, torch.Generator().manual_seed(0))(defenses.average(own))
    return Leak(model, sent, "head", len(PRIVATE))


def without(leak: Leak, layer: str) -> Leak:
    """Return what is left where a layer's gradient is not sent."""
    kept = {name: value for name, value in leak.gradients.items() if not name.startswith(layer)}
    return Leak(leak.model, kept, leak.head, leak.batch_size)


@pytest.mark.parametrize("kind", ["lstm", "gru", "transformer"])
def test_sentences_that_are_clipped_one_by_one_are_read_without_counts(kind: str) -> None:
    leak = weighted(kind)
    assert read_prefixes(leak) == sorted(PRIVATE)
    assert read_sentences(leak).status != "unique", "weights are no counts"


def test_weights_that_happen_to_be_nearly_whole_are_no_counts() -> None:
    counted = read_sentences(weighted("lstm"))
    assert counted.misfit < 1e-3
    assert "sentences of a batch of 3" in counted.reason


@pytest.mark.parametrize(("noise", "readable"), [(1e-7, True), (1e-6, True), (1e-5, True), (0.1, False)])
def test_a_little_noise_does_not_hide_them(noise: float, readable: bool) -> None:
    found = read_prefixes(weighted("lstm", noise))
    assert [one in found for one in PRIVATE] == [readable] * 3


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_neither_the_last_layer_nor_the_embedding_is_needed(kind: str) -> None:
    found = read_prefixes(without(weighted(kind), "head"))
    assert all(one in found for one in PRIVATE)
    leak = without(observe(weighted(kind).model, *batch_of(PRIVATE)), "embedding")
    assert read_prefixes(leak) == read_sentences(leak).all() == sorted(PRIVATE)


def test_only_some_words_are_tried() -> None:
    assert read_prefixes(weighted("lstm"), words=[7, 8, 9, 10]) == [PRIVATE[0]]
