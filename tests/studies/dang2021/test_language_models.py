"""The study of texts from a transformer's gradient: read exactly until tokens fill the layers, and its page."""

from __future__ import annotations

import torch

from gradleak.runs.records import Record
from gradleak.studies.dang2021 import language_models as study

STUDY = "language-models"
CHOSEN = {
    "clients": study.Client.listed(("package", 64, 2, 2, 6, 2)),
    "limits": study.Client.listed(("package", 64, 2, 2, 16, 1), ("package", 64, 2, 5, 16, 1)),
}


def test_texts_are_read_until_their_tokens_fill_the_width(record: Record) -> None:
    assert record.rows(study.ReadTexts)["exact"].all()
    limit = record.rows(study.ReadMoreTexts)
    assert limit["exact"].eq(limit["tokens"] < 63).all()
    assert not record.frame()["wrongly_sure"].any()


def test_models_of_the_library_have_the_given_width_and_layers() -> None:
    for name in ("gpt2", "llama"):
        model, _ = study.built(name, 64, 1, seed=0)
        again, _ = study.built(name, 64, 1, seed=0)
        head = model.get_output_embeddings()
        assert tuple(head.weight.shape) == (study.PIECES[name], 64)
        assert head.weight is model.get_input_embeddings().weight
        assert torch.equal(head.weight, again.get_output_embeddings().weight)
