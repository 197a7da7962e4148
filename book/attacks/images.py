"""A batch of images from one gradient of a residual network, in one file: python images.py

A client trains a residual network on a batch of images and sends the averaged gradient. The server searches for images
with the same gradient (Zhu et al. 2019). Two things make it work:

- The labels come first (Geiping et al. 2020, Wainakh et al. 2021). The gradient of the last layer's bias is the mean of
  p - y. Before training p is about 1/C everywhere, so B (1/C - gradient) counts how often each class is in the batch.
- The distance is the sum of squared differences in float64, and the optimiser is L-BFGS, which learns from earlier
  slopes how the slope changes. All activations are smooth. With ReLU the slope jumps, and a search needs more care.

Images of the same class are harder to tell apart: an untrained network is almost linear, so that the gradient hardly
changes if two of them are mixed.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x):
        return x + self.second(torch.tanh(self.first(torch.tanh(x))))


def network(classes=10, width=32, blocks=2):
    """Return an untrained residual network for images of 16 x 16 pixels."""
    layers = [nn.Conv2d(3, width, 3, padding=1), *(Block(width) for _ in range(blocks)), nn.AvgPool2d(2), nn.Tanh()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width * 64, classes)).double()


def gradient_of(model, images, labels, **options):
    """Return the gradient of the mean cross-entropy of a batch: what the client sends."""
    return torch.autograd.grad(F.cross_entropy(model(images), labels), list(model.parameters()), **options)


def classes_of(bias_gradient, size):
    """Return the labels of a batch of a known size, in no particular order."""
    counts, labels = size * (1 / len(bias_gradient) - bias_gradient), []
    for _ in range(size):
        labels.append(int(counts.argmax()))
        counts[labels[-1]] -= 1
    return torch.tensor(labels)


def server(model, gradient, size, steps=120):
    """Return the images and labels of a batch of a known size, computed from the model and the gradient alone."""
    labels = classes_of(gradient[-1].clone(), size)
    images = (0.5 + 0.1 * torch.randn(size, 3, 16, 16, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.LBFGS(
        [images], max_iter=steps, history_size=100, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    unit = sum(part.square().sum() for part in gradient)

    def closure():
        optimizer.zero_grad()
        own = gradient_of(model, images, labels, create_graph=True)
        misfit = sum((one - sent).square().sum() for one, sent in zip(own, gradient, strict=True)) / unit
        misfit.backward()
        return misfit

    optimizer.step(closure)
    return images.detach(), labels


def decibels(found, images):
    """Return the PSNR of each private image, with the found image that is most like it."""
    errors = (images[:, None] - found[None]).square().flatten(2).mean(dim=2)
    return -10 * errors.amin(dim=1).log10()


if __name__ == "__main__":
    torch.manual_seed(1)
    model = network()
    # Smooth random pictures; any images will do.
    images = F.interpolate(torch.rand(4, 3, 6, 6, dtype=torch.float64), size=16, mode="bicubic").clamp(0, 1)
    labels = torch.tensor([3, 8, 5, 0])
    found, classes = server(model, gradient_of(model, images, labels), size=4)
    print("the client's classes:", labels.sort().values.tolist())
    print("the server's answer: ", classes.sort().values.tolist())
    print("PSNR of the images:  ", ", ".join(f"{value:.0f} dB" for value in decibels(found, images)))
