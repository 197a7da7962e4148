"""Draw the figures of an audit: private and recovered images, and leakage against the cost of defences."""

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
# The side of a panel's axes, its margins, and its total size, in pixels.
SIDE, LEFT, TOP, WIDTH, HEIGHT = 130, 52, 44, 240, 240
COLOURS = ("#2f7fb5", "#d0654c", "#b98a2e", "#5f9166", "#8d6a9f", "#7d8890")
LEAST_SIDE = 64


def pair(truth: Truth, recovered: Tensor) -> str:
    """Return the private images above the recovered images, as a PNG in base64."""
    assert truth.pixels is not None
    matched = recovered.reshape(truth.inputs.shape).double()
    matched = matched[truth.order(matched)]
    batches = (truth.pixels(truth.inputs), truth.pixels(matched))
    rows = [torch.cat(list(images[:MOST].nan_to_num(0.5).clamp(0, 1).cpu()), dim=2) for images in batches]
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
    """Return a chart of the leakage against the cosine of the sent with the true gradient, as an SVG.

    Each row of panels is a batch size and each column a measure. Each ring is a defence and a precision; rings have
    different radii, so that all are visible at the same point. The text has the colour of the surrounding page.
    """
    wanted = ("labels", "words", "inputs", "image-ssim")
    names: list[str] = [name for name in wanted if name in report.measured]
    sizes = list(dict.fromkeys(cost.batch_size for cost in report.costs))
    panels = "".join(
        _panel(report, name, size, WIDTH * column, HEIGHT * row)
        for row, size in enumerate(sizes)
        for column, name in enumerate(names)
    )
    bottom = HEIGHT * len(sizes) + 12
    rows = [
        f"<circle cx='{LEFT}' cy='{bottom + 20 * index}' r='6' fill='none' stroke-width='2.5' "
        f"stroke='{COLOURS[index % 6]}'/>"
        f"<text x='{LEFT + 14}' y='{bottom + 20 * index + 4}'>{escape(name)}</text>"
        for index, name in enumerate(_rings(report))
    ]
    width, height = WIDTH * len(names), bottom + 20 * len(rows)
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' width='{width}' "
        "font-family='system-ui, sans-serif' font-size='12' fill='currentColor' role='img'>"
        f"<title>What leaks against the cosine of the sent with the true gradient</title>{panels}{''.join(rows)}</svg>"
    )


def _rings(report: Audited) -> list[str]:
    return list(dict.fromkeys(report.shown_place(cost.place) for cost in report.costs))


def _panel(report: Audited, name: str, size: int, left: int, top: int) -> str:
    """Return the panel of a batch size and a measure."""
    across, up = left + LEFT, top + TOP
    lines = [_line(across, up, f"{name}, batch of {size}")]
    for index, cost in enumerate(entry for entry in report.costs if entry.batch_size == size):
        findings = [finding for finding in report.findings if finding.place == cost.place]
        values = [finding.measures[name] for finding in findings if name in finding.measures]
        cosine = cost.cosine
        if cosine is not None and values:
            x = across + round(SIDE * max(0.0, min(1.0, cosine)))
            y = up + round(SIDE * (1 - max(0.0, min(1.0, max(values)))))
            ring = f"<circle cx='{x}' cy='{y}' r='{3 + 3 * index}' fill='none' stroke-width='2'"
            lines.append(f"{ring} stroke='{COLOURS[index % 6]}'/>")
    return "".join(lines)


def _line(across: int, top: int, name: str) -> str:
    """Return a panel's axes."""
    bottom = top + SIDE
    ticks = "".join(
        f"<text x='{across + round(SIDE * part)}' y='{bottom + 20}' text-anchor='middle'>{part:g}</text>"
        f"<text x='{across - 12}' y='{bottom - round(SIDE * part) + 4}' text-anchor='end'>{part:g}</text>"
        for part in (0, 0.5, 1)
    )
    return (
        f"<path d='M{across - 8} {top - 8}V{bottom + 8}H{across + SIDE + 8}' fill='none' stroke='currentColor' "
        f"stroke-opacity='0.5'/>{ticks}"
        f"<text x='{across - 8}' y='{top - 22}' font-weight='650'>{escape(name)}</text>"
        f"<text x='{across + SIDE // 2}' y='{bottom + 38}' text-anchor='middle'>cosine with the true gradient</text>"
    )
