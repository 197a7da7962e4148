"""The wheel in an environment of its own, without the checkout: `python -m tests.acceptance.wheel [ENVIRONMENT]`.

Builds the wheel, installs it where nothing else is (in the folder ENVIRONMENT, which is kept and used again; else in
one that is removed), and does with it what the README promises. Takes minutes, and several GB for torch.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MODEL = """
from torch import nn


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 10))
"""
SIZES = """
import importlib.metadata as m
files = {d.name: [f.locate() for f in d.files or ()] for d in m.distributions()}
sizes = {name: sum(file.stat().st_size for file in own if file.is_file()) for name, own in files.items()}
heavy = sum(size for name, size in sizes.items() if name.startswith(("torch", "nvidia", "triton", "cuda")))
print(sizes["gradleak"] / 1e6, (sum(sizes.values()) - heavy) / 1e6, heavy / 1e9)
"""
IMPORT = "import time; t = time.process_time(); import {}; print(time.process_time() - t)"
AUDITS = {
    "an MLP of one's own": ("mine:make_model", "--batch-size", "4"),
    "LeNet": ("lenet", "--batch-size", "1"),
    "torchvision's resnet18": ("torchvision.models:resnet18", "--minutes", "5"),
}


def built(folder: Path) -> Path:
    """Build the wheel of this checkout and return it."""
    command = [sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def checks(python: Path, work: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield what is promised, whether it holds, and what was seen."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("GRADLEAK", "PYTHON", "VIRTUAL_ENV"))}
    environment["HOME"] = str(work)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *words], cwd=work, env=environment, capture_output=True, text=True, check=False)

    def gradleak(*words: str) -> subprocess.CompletedProcess[str]:
        return run("-m", "gradleak", *words)

    own, others, torch = map(float, run("-c", SIZES).stdout.split())
    yield "installed", own < 5, f"gradleak {own:.1f} MB, what it needs {others:.0f} MB, torch {torch:.1f} GB"
    seconds = {name: float(run("-c", IMPORT.format(name)).stdout) for name in ("torch", "torch, gradleak.labels")}
    told = ", ".join(f"import {name}: {taken:.1f} CPU-s" for name, taken in seconds.items())
    yield "imported", seconds["torch, gradleak.labels"] < seconds["torch"] + 5, told
    yield "needs nothing of the book", run("-c", "import papermill").returncode == 1, "papermill is not there"
    yield "gradleak data", "photos" in gradleak("data").stdout, "lists photos"
    claims = gradleak("claims")
    yield "gradleak claims", "theorem1-sum-bound" in claims.stdout, f"{len(claims.stdout.splitlines())} lines"
    page = gradleak("run", "theorem1")
    yield "gradleak run", page.returncode == 2 and page.stderr.count("\n") == 1, page.stderr.strip()
    (work / "mine.py").write_text(MODEL)
    for number, (name, words) in enumerate(AUDITS.items()):
        started = time.perf_counter()
        ended = gradleak("audit", *words, "--data", "photos", "--out", f"report{number}")
        if ended.returncode != 0:
            yield f"audit of {name}", False, ended.stderr.strip()[-300:]
            continue
        findings = json.loads((work / f"report{number}" / "report.json").read_text())["findings"]
        taken = time.perf_counter() - started
        best = max((one["measures"].get("image-psnr", 0.0) for one in findings), default=0.0)
        well = bool(findings) if "--minutes" in words else best > 60
        yield f"audit of {name}", well, f"{taken:.0f} s, best image {best:.1f} dB"


def main(kept: Path | None) -> int:
    """Print a line a check, and return how many promises do not hold."""
    with tempfile.TemporaryDirectory() as scratch:
        place, work = kept or Path(scratch) / "environment", Path(scratch) / "work"
        work.mkdir()
        wheel = built(Path(scratch))
        if not (place / "bin" / "python").is_file():
            venv.create(place, with_pip=True)
        python, lock = place / "bin" / "python", str(ROOT / "requirements.lock")
        print(f"installing {wheel.name} (several minutes the first time: torch is large)", flush=True)
        for options in (["-c", lock], ["--no-deps", "--force-reinstall"]):
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, str(wheel)]
            subprocess.run(pip, check=True, cwd=scratch, env=os.environ | {"PYTHONPATH": ""})
        wrong = 0
        for promise, holds, seen in checks(python, work):
            wrong += not holds
            print(f"{'holds' if holds else 'WRONG':6} {promise}: {seen}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None))
