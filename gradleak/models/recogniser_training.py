"""Training a recogniser on made-up speech: small, seeded, cached by its recipe like every network here.

It is small and trains on the CPU, also for a page on a GPU, so that a recipe gives the same network everywhere.
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

# Raised when the code below changes what a recipe gives.
VERSION = 1
BATCH = 8
RATE = 2e-3


def trained_recogniser(size: str, name: str, steps: int, *, seed: int = 0) -> tuple[Recogniser, float]:
    """Return a recogniser after so many steps on the longer sentences of a text, and its loss over the last of them.

    It learns what those sentences say, not to hear: its speech is made up, and there is little of it.
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
            tokens = [[*words.encode(one), words.end] for one in sentences]
            loss = _fit(model, sentences, tokens, steps, seed)
            content = stored = {"state": model.state_dict(), "loss": loss}
            write_whole(file, lambda stream: torch.save(content, stream))
    model.load_state_dict(stored["state"])
    return model.eval(), float(stored["loss"])


def loss_of(model: Recogniser, sentences: Sequence[str], tokens: Sequence[Sequence[int]]) -> Tensor:
    """Return the mean cross-entropy over all tokens of some sentences."""
    sounds = [pseudo_speech(one) for one in sentences]
    lengths = torch.tensor([len(one) for one in sounds])
    labels = pad_sequence([torch.tensor(one) for one in tokens], batch_first=True, padding_value=PADDING)
    before = F.pad(labels[:, :-1].clamp(min=0), (1, 0), value=START)
    memory = model.listen(pad_sequence(sounds, batch_first=True), lengths)
    read = model.steps(memory, before, heard(lengths))
    # No logits are made of what is padded.
    said = labels != PADDING
    return F.cross_entropy(model.head(read[said]), labels[said])


def _fit(model: Recogniser, sentences: Sequence[str], tokens: Sequence[Sequence[int]], steps: int, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), RATE)
    threads = torch.get_num_threads()
    # The number of threads decides in which order sums are taken; one recipe, one result.
    torch.set_num_threads(1)
    losses: list[float] = []
    try:
        for _ in reporting.steps(range(steps), steps, "training a recogniser"):
            chosen = torch.randint(len(sentences), (BATCH,), generator=generator).tolist()
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model, [sentences[n] for n in chosen], [tokens[n] for n in chosen])
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    finally:
        torch.set_num_threads(threads)
    last = losses[-50:]
    return sum(last) / len(last)
