"""Define an attention-based speech recogniser, in dang2021's size and in sizes that train on a CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from gradleak.errors import InputError, unknown

BANDS = 80
START = 1  # the token before a transcript, as in dang2021's vocabulary
END = 2  # the token after a transcript
LEAST = 4  # the least number of frames, since the convolutions keep every fourth frame


@dataclass(frozen=True)
class Size:
    """The size of a recogniser.

    Attributes:
        heard: The units of each direction of the encoder.
        encoder_layers: The number of the encoder's layers.
        state: The units of the decoder.
        decoder_layers: The number of the decoder's layers.
        embedding: The width of the token embedding.
        attention: The width of the attention.
        convolution: The standard deviation of the convolutions' initial weights; None for torch's default.
    """

    heard: int
    encoder_layers: int
    state: int
    decoder_layers: int
    embedding: int
    attention: int
    convolution: float | None


SIZES = {
    # "Listen, attend and spell" as implemented in lingvo, [C].
    "paper": Size(1024, 4, 1024, 2, 96, 128, 0.001),
    # The paper's initial convolutions pass almost no signal; networks to be trained use torch's default.
    "small": Size(128, 1, 256, 1, 96, 128, None),
    "small-2": Size(128, 1, 256, 2, 96, 128, None),
}


class Recogniser(nn.Module):
    """A recogniser that maps speech (B, F, 80) and the previous tokens (B, T) to logits (B, T, C).

    The decoder's first layer reads [embedding; last context] and its previous state, and its new state is the query of
    the attention. Every further layer reads [state of the layer below; context] (chan2016). The last Linear layer
    reads [state; context].
    """

    def __init__(self, size: Size, classes: int) -> None:
        super().__init__()
        context = 2 * size.heard
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ReLU()
        )
        self.encoder = nn.LSTM(32 * BANDS // 4, size.heard, size.encoder_layers, batch_first=True, bidirectional=True)
        self.embedding = nn.Embedding(classes, size.embedding)
        self.cells = nn.ModuleList(
            nn.LSTMCell((size.state if layer else size.embedding) + context, size.state)
            for layer in range(size.decoder_layers)
        )
        self.keys = nn.Linear(context, size.attention)
        self.query = nn.Linear(size.state, size.attention, bias=False)
        self.energy = nn.Linear(size.attention, 1, bias=False)
        self.head = nn.Linear(size.state + context, classes)

    def forward(self, speech: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, C) of every next token; `lengths` (B,) are the frames without padding."""
        return self.spell(self.listen(speech, lengths), tokens, None if lengths is None else heard(lengths))

    def listen(self, speech: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the encoder's outputs (B, about F / 4, context)."""
        if speech.ndim != 3 or speech.shape[2] != BANDS or speech.shape[1] < LEAST:
            raise InputError(f"speech must be (B, F, {BANDS}) with at least {LEAST} frames; got {tuple(speech.shape)}")
        maps = self.convolutions(speech.unsqueeze(1)).transpose(1, 2).flatten(2)
        if lengths is None:
            outputs: Tensor = self.encoder(maps)[0]
            return outputs
        packed = pack_padded_sequence(maps, heard(lengths), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.encoder(packed)[0], batch_first=True)[0]

    def spell(self, memory: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the logits (B, T, C) of every next token from the encoder's outputs and their `lengths` (B,)."""
        logits: Tensor = self.head(self.steps(memory, tokens, lengths))
        return logits

    def steps(self, memory: Tensor, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the last layer's inputs (B, T, I), [state; context] of every step."""
        keys = self.keys(memory)
        silent = None
        if lengths is not None:
            silent = torch.arange(memory.shape[1], device=memory.device) >= lengths.to(memory.device)[:, None]
        zeros = memory.new_zeros(len(memory), self.query.in_features)
        states = [(zeros, zeros)] * len(self.cells)
        context = memory.new_zeros(len(memory), memory.shape[2])
        features = []
        for token in self.embedding(tokens).unbind(dim=1):
            below = token
            for layer, cell in enumerate(self.cells):
                states[layer] = cell(torch.cat([below, context], dim=1), states[layer])
                below = states[layer][0]
                if layer == 0:
                    context = self._attend(keys, memory, below, silent)
            features.append(torch.cat([below, context], dim=1))
        return torch.stack(features, dim=1)

    def _attend(self, keys: Tensor, memory: Tensor, state: Tensor, silent: Tensor | None) -> Tensor:
        scores = self.energy(torch.tanh(keys + self.query(state).unsqueeze(1))).squeeze(2)
        if silent is not None:
            scores = scores.masked_fill(silent, -torch.inf)
        return torch.einsum("bl,blc->bc", scores.softmax(dim=1), memory)


def heard(lengths: Tensor) -> Tensor:
    """Return the numbers of the encoder's steps for these numbers of frames."""
    return ((lengths + 1) // 2 + 1) // 2


def recogniser(size: str, classes: int, *, seed: int = 0) -> Recogniser:
    """Return an untrained recogniser in eval mode, initialised as in the paper.

    Parameters are from U(−0.1, 0.1), embeddings from U(−1, 1), and the convolutions' weights from N(0, 0.001²) for
    "paper".
    """
    if size not in SIZES:
        raise unknown("recogniser", size, SIZES)
    if classes < 4:
        raise InputError(f"a recogniser needs at least 4 classes, including its marks; got {classes}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Recogniser(SIZES[size], classes)
        for name, parameter in model.named_parameters():
            if not name.startswith("convolutions"):
                nn.init.uniform_(parameter, *((-1, 1) if name.startswith("embedding") else (-0.1, 0.1)))
            elif SIZES[size].convolution is not None and name.endswith("weight"):
                nn.init.normal_(parameter, 0, SIZES[size].convolution or 0)
    return model.eval()
