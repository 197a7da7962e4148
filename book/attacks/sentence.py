"""A sentence from one gradient, word by word, in one file: python sentence.py

A client trains a language model (a transformer) on one sentence and sends the gradient. The server computes the words.

Let X (T, I) be the inputs of the first layer's value projection V = X A: the embedding of each word plus that of its
position, normalised. The gradient of A is

    G = X' D

where D (T, I) is the gradient of the values. So the columns of G are combinations of the rows of X, one for each word
of the sentence. As long as the sentence is shorter than the width I of the model, a word of the vocabulary at position
t lies in the span of these columns only if it stands there. So the server tries every word at every position. This is
the idea of DAGER (Petrov et al. 2024).
"""

import torch
from torch import nn
from torch.nn import functional as F

WORDS = [
    "the", "a", "dog", "cat", "bird", "child", "sees", "hears", "likes", "finds", "red", "small", "old", "new", "ball",
    "tree", "house", "and", "then", ".",
]  # fmt: skip


class Model(nn.Module):
    """A language model with one layer of causal attention."""

    def __init__(self, width=48, longest=16):
        super().__init__()
        self.word, self.place = nn.Embedding(len(WORDS), width), nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, len(WORDS))

    def first(self, words, places):
        """Return the inputs of the attention for words at places."""
        return self.norm(self.word(words) + self.place(places))

    def forward(self, words):
        """Return the scores of each next word (T, V)."""
        inputs = self.first(words, torch.arange(len(words)))
        scores = self.query(inputs) @ self.key(inputs).T / inputs.shape[1] ** 0.5
        unseen = torch.ones(len(words), len(words)).triu(1).bool()
        return self.out(inputs + scores.masked_fill(unseen, float("-inf")).softmax(dim=1) @ self.value(inputs))


def client(model, sentence):
    """Return the gradient of the value projection on a sentence: at each word the model predicts the next one."""
    words = torch.tensor([WORDS.index(word) for word in sentence.split()])
    loss = F.cross_entropy(model(words[:-1]), words[1:])
    (gradient,) = torch.autograd.grad(loss, model.value.weight)
    return gradient


def server(model, gradient, near=1e-3):
    """Return the words that the client's model has read, and the distance of each word from the gradient's span."""
    # torch stores a layer's weight as A', so here it is the rows that are combinations of the words.
    _, sizes, rows = torch.linalg.svd(gradient.double())
    span = rows[: int((sizes > 1e-6 * sizes[0]).sum())]
    found, distances = [], []
    with torch.no_grad():
        for place in range(model.place.num_embeddings):
            tried = model.first(torch.arange(len(WORDS)), torch.tensor(place)).double()
            tried = tried / tried.norm(dim=1, keepdim=True)
            distance = (tried - tried @ span.T @ span).norm(dim=1)
            if distance.min() > near:
                break  # the sentence has ended: no word fits
            found.append(WORDS[int(distance.argmin())])
            distances.append(distance)
    return found, torch.stack(distances) if found else torch.empty(0, len(WORDS))


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Model()
    sentence = "the old dog sees a small red bird and then the child finds the ball ."
    found, distances = server(model, client(model, sentence))
    print("the client's sentence:", sentence)
    print("the server's answer:  ", " ".join(found), "(the last token is never an input)")
    near = distances.sort(dim=1).values
    print(f"largest distance of a right word: {near[:, 0].max():.0e}; least of a wrong one: {near[:, 1].min():.2f}")
