"""The pictures of an audit: private and recovered images side by side, and what leaks against what a defence costs."""

from __future__ import annotations

import base64
import io
from html import escape

import torch
from PIL import Image
from torch import Tensor

from gradleak.auditing.findings import Audited
from gradleak.auditing.measuring import Truth

MOST = 8
# Of a panel of the frontier: its side, and the room around it.
SIDE, LEFT, TOP, WIDTH = 170, 52, 30, 262
COLOURS = ("#2f7fb5", "#d0654c", "#b98a2e", "#5f9166", "#8d6a9f")
LEAST_SIDE = 64


def pair(truth: Truth, recovered: Tensor) -> str:
    """Return private images above what was recovered of them, as a PNG in base64."""
    assert truth.pixels is not None
    own = recovered.reshape(truth.inputs.shape).double()
    own = own[truth.order(own)]
    both = (truth.pixels(truth.inputs), truth.pixels(own))
    rows = [torch.cat(list(images[:MOST].nan_to_num(0.5).clamp(0, 1).cpu()), dim=2) for images in both]
    pixels = (torch.cat(rows, dim=1) * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
    side = truth.inputs.shape[-1]
    image = Image.fromarray(pixels.squeeze())
    factor = max(1, -(-LEAST_SIDE // side))
    return png(image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST))


def png(image: Image.Image) -> str:
    """Return an image as a PNG in base64."""
    stream = io.BytesIO()
    image.save(stream, "PNG")
    return base64.b64encode(stream.getvalue()).decode()


def frontier(report: Audited) -> str:
    """Return what leaks against what the gradient is still worth as an SVG, which takes its ink from where it is."""
    wanted = ("labels", "words", "inputs", "image-ssim")
    names: list[str] = [name for name in wanted if name in report.measured]
    sizes = list(dict.fromkeys(one.batch_size for one in report.costs))
    panels = "".join(_panel(report, name, sizes, WIDTH * index) for index, name in enumerate(names))
    legend = "".join(
        f"<circle cx='{LEFT + 130 * n}' cy='{TOP + SIDE + 62}' r='5' fill='{COLOURS[n % 5]}'/>"
        f"<text x='{LEFT + 130 * n + 11}' y='{TOP + SIDE + 66}'>batch of {size}</text>"
        for n, size in enumerate(sizes)
    )
    width = max(WIDTH * len(names), LEFT + 130 * len(sizes))
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {TOP + SIDE + 80}' width='{width}' "
        "font-family='system-ui, sans-serif' font-size='12' fill='currentColor' role='img'>"
        f"<title>What leaks against the cosine of the sent with the true gradient</title>{panels}{legend}</svg>"
    )


def _panel(report: Audited, name: str, sizes: list[int], left: int) -> str:
    """Return one measure's panel: a point a defence and batch size, those that lie together named together."""
    across, names = left + LEFT, dict[tuple[int, int], list[str]]()
    lines = [_line(across, name)]
    for one in report.costs:
        own = [f for f in report.findings if (f.defense, f.batch_size) == (one.defense, one.batch_size)]
        values = [f.measures[name] for f in own if name in f.measures]
        if one.cosine is None or not values:
            continue
        x = across + round(SIDE * max(0.0, min(1.0, one.cosine)))
        y = TOP + round(SIDE * (1 - max(0.0, min(1.0, max(values)))))
        # Points of several sizes may lie on one another: rings of different widths are all seen.
        n = sizes.index(one.batch_size)
        lines.append(
            f"<circle cx='{x}' cy='{y}' r='{4 + 3 * n}' fill='none' stroke='{COLOURS[n % 5]}' stroke-width='2.5'/>"
        )
        words = names.setdefault((round(x / 24), round(y / 12)), [f"{x},{y}"])
        words += [one.defense] if one.defense not in words else []
    for place, *words in names.values():
        x, y = map(int, place.split(","))
        right = x > across + SIDE / 2
        edge, side = (x - 14, "end") if right else (x + 14, "start")
        up = y + 4 if y < TOP + SIDE / 2 else y - 13 * (len(words) - 1)
        lines += [
            f"<text x='{edge}' y='{up + 13 * n}' text-anchor='{side}' font-size='11'>{escape(word)}</text>"
            for n, word in enumerate(words)
        ]
    return "".join(lines)


def _line(across: int, name: str) -> str:
    """Return a panel's axes."""
    bottom = TOP + SIDE
    ticks = "".join(
        f"<text x='{across + round(SIDE * part)}' y='{bottom + 20}' text-anchor='middle'>{part:g}</text>"
        f"<text x='{across - 12}' y='{bottom - round(SIDE * part) + 4}' text-anchor='end'>{part:g}</text>"
        for part in (0, 0.5, 1)
    )
    return (
        f"<path d='M{across - 8} {TOP - 8}V{bottom + 8}H{across + SIDE + 8}' fill='none' stroke='currentColor' "
        f"stroke-opacity='0.5'/>{ticks}"
        f"<text x='{across - 8}' y='{TOP - 15}' font-weight='650'>{escape(name)}</text>"
        f"<text x='{across + SIDE // 2}' y='{bottom + 38}' text-anchor='middle'>cosine with the true gradient</text>"
    )
