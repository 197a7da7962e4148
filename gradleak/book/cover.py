"""The book's first picture: private photographs, the gradient that was shared, and what the server makes of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gradleak import augment, data
from gradleak.book import figures
from gradleak.leak import Leak, observe


@dataclass(frozen=True)
class Exposure:
    """One private image (3, H, W), the gradient row the server received, and the image and label it computed."""

    private: Tensor
    private_label: Tensor
    gradient: Tensor
    recovered: Tensor
    recovered_label: Tensor


def expose(samples: int = 6, seed: int = 7) -> list[Exposure]:
    """Let single photographs leak out of a fully connected network with biases, in closed form (aono2017)."""
    photos = data.load("photos", "test", size=64)
    generator = torch.Generator().manual_seed(seed)
    classes = torch.randperm(photos.classes, generator=generator)[:samples]
    # Of each photograph the crop with the most contrast: the one that tells the eye the most.
    contrast = photos.images.flatten(1).std(dim=1)
    chosen = torch.stack([contrast.where(photos.labels == label, contrast.new_zeros(())).argmax() for label in classes])
    epsilon = torch.rand(samples, generator=generator) / 2
    labels = augment.smooth(photos.labels[chosen], photos.classes, epsilon)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 64), nn.ReLU(), nn.Linear(64, photos.classes))
    return [
        _attack(photos.images[n], label, observe(model, photos.images[n : n + 1], label[None]))
        for n, label in zip(chosen.tolist(), labels, strict=True)
    ]


def _attack(private: Tensor, label: Tensor, leak: Leak) -> Exposure:
    """Recover the image from the first layer and the label from the last; the truth is only kept beside."""
    weight, bias = leak.gradients["1.weight"], leak.gradients["1.bias"]
    row = bias.abs().argmax()
    image = (weight[row] / bias[row]).reshape(private.shape)
    error, final_bias = leak.bias_gradient, leak.bias
    assert error is not None
    assert final_bias is not None
    feature = leak.weight_gradient.T @ error / error.square().sum()
    guess = (leak.weight @ feature + final_bias).softmax(dim=0) - error
    return Exposure(private, label, weight[row].reshape(private.shape), image, guess)


def quality(exposure: Exposure) -> tuple[float, float]:
    """Return the image's PSNR in dB and the label's L1 error."""
    from gradleak import metrics

    psnr = float(metrics.psnr(exposure.recovered[None].clamp(0, 1), exposure.private[None])[0])
    return psnr, float((exposure.recovered_label - exposure.private_label).abs().sum())


def make_cover(path: Path) -> None:
    """Draw the picture."""
    shown = expose()
    figures.style()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(3, len(shown), figsize=(1.75 * len(shown) + 1.1, 6.1), layout="constrained")
    titles = ("private\nphotograph", "shared\ngradient", "recovered\nby the server")
    for row, title in enumerate(titles):
        axes[row][0].set_ylabel(title, fontsize=12, fontweight="bold", rotation=0, ha="right", va="center", labelpad=12)
    for column, exposure in zip(axes.T, shown, strict=True):
        noise = exposure.gradient / exposure.gradient.abs().max()
        # Stretched about grey, as it comes over the wire: values of either sign.
        pictures = (exposure.private, (noise * 0.5 + 0.5), exposure.recovered.clamp(0, 1))
        for axis, picture in zip(column, pictures, strict=True):
            axis.imshow(picture.permute(1, 2, 0).numpy(), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            axis.grid(False)
            for spine in axis.spines.values():
                spine.set_visible(False)
        psnr, error = quality(exposure)
        column[2].set_xlabel(f"{psnr:.0f} dB\nlabel off by {error:.0e}", fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
