"""Train a small recogniser on artificial speech, with a cache by a hash of the recipe.

Training always runs on the CPU, even in a study on a GPU, so that a recipe gives the same network everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from gradleak import paths, reporting
from gradleak.data import text
from gradleak.data.speech import pseudo_speech
from gradleak.losses import PADDING
from gradleak.models.recogniser import START, Recogniser, heard, recogniser
from gradleak.models.training import cached_state
from gradleak.storage import locked, write_whole

# Increase this when a change of the code below changes the result of a recipe.
VERSION = 1
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
    file = paths.cache() / "networks" / f"recogniser-{hashlib.sha256(recipe.encode()).hexdigest()[:16]}.pt"
    with locked(file):
        stored = cached_state(file)
        if stored is None:
            tokens = [[*words.encode(sentence), words.end] for sentence in sentences]
            loss = _fit(model, sentences, tokens, steps, seed)
            content = stored = {"state": model.state_dict(), "loss": loss}
            write_whole(file, lambda stream: torch.save(content, stream))
    model.load_state_dict(stored["state"])
    return model.eval(), float(stored["loss"])


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
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    threads = torch.get_num_threads()
    # The order of sums depends on the number of threads, so use one thread: a recipe must give one result.
    torch.set_num_threads(1)
    losses: list[float] = []
    try:
        for _ in reporting.steps(range(steps), steps, "training a recogniser"):
            indices = torch.randint(len(sentences), (BATCH,), generator=generator).tolist()
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model, [sentences[index] for index in indices], [tokens[index] for index in indices])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    finally:
        torch.set_num_threads(threads)
    recent = losses[-50:]
    return sum(recent) / len(recent)
