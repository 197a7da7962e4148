"""The recogniser has the paper's size and start, spells from what it hears, and padding changes next to nothing."""

from __future__ import annotations

import pytest
import torch

from gradleak.data.speech import pseudo_speech
from gradleak.errors import InputError, UnknownName
from gradleak.models.recogniser import SIZES, Recogniser, heard, recogniser


def test_the_papers_size() -> None:
    with torch.device("meta"):
        model = Recogniser(SIZES["paper"], 16_328)
    assert model.head.weight.shape == (16_328, 3_072)
    assert [cell.input_size for cell in model.cells] == [96 + 2048, 1024 + 2048]
    assert model.encoder.num_layers == 4
    assert model.encoder.bidirectional
    assert (model.encoder.input_size, model.encoder.hidden_size) == (640, 1024)


def test_how_it_is_drawn() -> None:
    model = recogniser("small-2", 30, seed=3)
    assert 0.095 < float(model.head.weight.detach().abs().max()) <= 0.1
    assert 0.9 < float(model.embedding.weight.detach().abs().max()) <= 1
    assert torch.equal(model.head.weight, recogniser("small-2", 30, seed=3).head.weight)
    assert model.head.weight.shape == (30, 512)
    with pytest.raises(UnknownName, match="recogniser 'large'"):
        recogniser("large", 30)


def test_every_utterance_of_a_padded_batch_is_spelled_as_if_alone() -> None:
    model = recogniser("small", 30)
    sounds = [pseudo_speech("yes"), pseudo_speech("a longer one")]
    lengths = torch.tensor([len(one) for one in sounds])
    padded = torch.nn.utils.rnn.pad_sequence(sounds, batch_first=True)
    tokens = torch.tensor([[1, 5, 6], [1, 7, 8]])
    with torch.no_grad():
        together = model(padded, tokens, lengths)
        memory = [model.listen(one.unsqueeze(0)) for one in sounds]
        assert [one.shape[1] for one in memory] == heard(lengths).tolist()
        for number, one in enumerate(memory):
            alone = model.spell(one, tokens[number : number + 1])[0]
            # The frame behind the end is heard with another edge.
            torch.testing.assert_close(together[number], alone, atol=2e-2, rtol=0)
    with pytest.raises(InputError, match=r"speech must be \(B, F, 80\)"):
        model.listen(torch.zeros(1, 50, 40))
