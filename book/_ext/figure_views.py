"""A Sphinx extension that gives figures their further pictures: for a phone, and with a dark ground.

`gradleak.show.views` puts them beside the picture that a notebook shows. A page's picture is named by its hash, from
which the further ones are found.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

KEY = "gradleak"
IMAGE = re.compile(r'<img [^>]*?src="(?P<folder>[^"]*_images/)(?P<name>[0-9a-f]{64})\.png"[^>]*>')
# The widest window (pixels) that counts as a phone.
PHONE = 600


def gathered(folder: Path) -> dict[str, dict[str, bytes]]:
    """Return the further pictures of all figures in a folder's notebooks, by the hash of the first one."""
    found = {}
    for file in folder.rglob("*.ipynb"):
        for cell in json.loads(file.read_text("utf-8"))["cells"]:
            for output in cell.get("outputs", ()):
                if others := output.get("metadata", {}).get(KEY):
                    name = hashlib.sha256(base64.b64decode(output["data"]["image/png"])).hexdigest()
                    found[name] = {kind: base64.b64decode(png) for kind, png in others.items()}
    return found


def pictured(image: re.Match[str], found: dict[str, dict[str, bytes]]) -> str:
    """Return the element of a figure with its further pictures, or the image as it is if there are none."""
    folder, name = image["folder"], image["name"]
    if "narrow" in (others := found.get(name, {})):
        source = f'<source media="(max-width: {PHONE}px)" srcset="{folder}{name}-narrow.png" />'
        return f'<picture class="gradleak-chart">{source}{image[0]}</picture>'
    if "dark" in others:
        dark = image[0].replace(f"{name}.png", f"{name}-dark.png")
        return f'<span class="only-light">{image[0]}</span><span class="only-dark gradleak-dark">{dark}</span>'
    return image[0]


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the further pictures, and name them in the pages that have just been written."""
    if error or app.builder.format != "html":
        return
    out = Path(app.outdir)
    found = gathered(out.parent / "jupyter_execute")  # myst-nb keeps all notebooks there as it shows them
    for name, others in found.items():
        for kind, png in others.items():
            (out / "_images" / f"{name}-{kind}.png").write_bytes(png)
    for file in (out / "book").rglob("*.html"):
        text = file.read_text("utf-8")
        changed = IMAGE.sub(lambda image: pictured(image, found), text)
        if changed != text and "gradleak-chart" not in text and "gradleak-dark" not in text:
            file.write_text(changed, "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Change the pages when all are written."""
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
