"""A soft label from one gradient, in one file: python soft_label.py

A client trains on one image whose label is smoothed: the true class has probability 0.7, say, and the others share the
rest. It sends the gradient of the cross-entropy. The server computes the label from it.

Let x be the input of the last layer, W its weight and p = softmax(W x) the prediction. The gradient of W is

    G = (p - y) x'

All its rows are multiples of x, so x is known up to one number s: x = s v, where v has length 1. Then the label is

    y(s) = softmax(s W v) - G v / s

because G v = (p - y) x'v = (p - y) s. The right s is the one at which y(s) looks like a smoothed label: all
probabilities but the largest are equal. This is the idea of Wang et al. (2024); this file searches on a grid and by
golden sections, where they use L-BFGS or a particle swarm.
"""

import torch
from torch import nn
from torch.nn import functional as F


def client(classes=10, seed=0):
    """Return what the client sends, and what it keeps: the model, its gradient of W, the features and the label."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.Sigmoid(), nn.Flatten(), nn.Linear(12 * 8 * 8, classes, bias=False)
    )
    image = torch.rand(1, 3, 16, 16)
    share = 0.3 * torch.rand(())  # the probability that the classes share
    label = torch.full((1, classes), float(share) / classes)
    label[0, torch.randint(classes, ())] += 1 - share
    weight = model[-1].weight
    loss = F.cross_entropy(model(image), label)
    (gradient,) = torch.autograd.grad(loss, weight)
    return weight.detach(), gradient, model[:-1](image).detach()[0], label[0]


def unevenness(labels):
    """Return how far labels (S, C) are from smoothed ones: the variance of all probabilities but the largest."""
    return labels.sort(dim=1).values[:, :-1].var(dim=1, correction=0)


def server(weight, gradient, grid=4000, sections=80):
    """Return the label and the features, computed from the weight and the gradient alone."""
    weight, gradient = weight.double(), gradient.double()
    v = torch.linalg.svd(gradient, full_matrices=False).Vh[0]
    logits, pulls = weight @ v, gradient @ v

    def label(s):
        return (s[:, None] * logits).softmax(dim=1) - pulls / s[:, None]

    # All scalars at once, of both signs. Each minimum on the grid lies between its two neighbours.
    size = torch.logspace(-3, 3, grid, dtype=torch.float64)
    tried = torch.cat([-size.flip(0), size])
    values = unevenness(label(tried))
    lowest = (values[1:-1] < values[:-2]) & (values[1:-1] < values[2:])
    low, high = tried[:-2][lowest], tried[2:][lowest]
    for _ in range(sections):
        nearer, farther = high - 0.618 * (high - low), low + 0.618 * (high - low)
        left = unevenness(label(nearer)) < unevenness(label(farther))
        low, high = torch.where(left, low, nearer), torch.where(left, farther, high)
    scalars = (low + high) / 2
    labels = label(scalars)
    # A label is a probability; the rest is a coincidence.
    misfit = unevenness(labels) + (labels < -1e-4).any(dim=1)
    best = misfit.argmin()
    return labels[best], scalars[best] * v


if __name__ == "__main__":
    weight, gradient, features, label = client()
    found, found_features = server(weight, gradient)
    torch.set_printoptions(precision=4, sci_mode=False)
    print("the client's label   ", label)
    print("the server's answer  ", found.float())
    print("error of the features", float((found_features - features).norm() / features.norm()))
