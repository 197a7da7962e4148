"""Train a small recogniser on artificial speech, with a cache by a hash of the recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.losses import PADDING
from gradleak.models.recogniser import START, Recogniser, heard, recogniser
from gradleak.models.training import VERSION, epochs, kept

BATCH = 8
RATE = 2e-3


def trained_recogniser(size: str, name: str, steps: int, *, seed: int = 0) -> tuple[Recogniser, float]:
    """Return a recogniser trained for `steps` steps on a text's training split, and its mean loss in the last steps.

    The recogniser learns the text rather than to recognise speech, because its speech is artificial and scarce.
    """
    words = text.vocabulary(name)
    model = recogniser(size, len(words), seed=seed)
    sentences = text.texts(name, "train")
    if steps == 0:
        return model, float("nan")
    recipe = repr((VERSION, size, name, steps, seed, BATCH, RATE, words.pieces, sentences))
    tokens = [[*words.encode(sentence), words.end] for sentence in sentences]
    key = f"recogniser-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}"
    content, _ = kept(key, model, lambda: {"loss": _fit(model, sentences, tokens, steps, seed)})
    return model, float(content["loss"])


def loss_of(model: Recogniser, sentences: Sequence[str], tokens: Sequence[Sequence[int]]) -> Tensor:
    """Return the mean cross-entropy over all tokens of the sentences."""
    sounds = [pseudo_speech(one) for one in sentences]
    lengths = torch.tensor([len(one) for one in sounds])
    labels = pad_sequence([torch.tensor(one) for one in tokens], batch_first=True, padding_value=PADDING)
    previous = F.pad(labels[:, :-1].clamp(min=0), (1, 0), value=START)
    memory = model.listen(pad_sequence(sounds, batch_first=True), lengths)
    features = model.steps(memory, previous, heard(lengths))
    # Skip padded positions before the last layer, to save their logits.
    present = labels != PADDING
    return F.cross_entropy(model.head(features[present]), labels[present])


def _fit(model: Recogniser, sentences: Sequence[str], tokens: Sequence[Sequence[int]], steps: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)

    def order() -> Iterable[Tensor]:
        yield torch.randint(len(sentences), (BATCH,), generator=generator)

    def loss(indices: Tensor) -> tuple[Tensor, int]:
        chosen = indices.tolist()
        return loss_of(model, [sentences[index] for index in chosen], [tokens[index] for index in chosen]), 1

    losses = epochs(steps, torch.optim.Adam(model.parameters(), RATE), order, loss, "a recogniser")
    recent = losses[-50:]
    return sum(recent) / len(recent)
