"""The wheel in an environment of its own, without the checkout: `python -m tests.acceptance.wheel [ENVIRONMENT]`.

Builds the wheel, installs it where nothing else is (in the folder ENVIRONMENT, which is kept and used again; else in
one that is removed), and does with it what the README promises. Takes minutes, and several GB for torch.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
Run = Callable[..., subprocess.CompletedProcess[str]]
MODEL = """
from torch import nn


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64), nn.ReLU(), nn.Linear(64, 10))
"""
AUDITS = {
    "an MLP of one's own": ("mine:make_model", "--batch-size", "4"),
    "torchvision's resnet18": ("torchvision.models:resnet18", "--minutes", "5"),
}


def promises(gradleak: Run, work: Path, audits: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, bool, str]]:
    """Yield each promise of the package without its book, whether it holds, and the output.

    Args:
        gradleak: Runs the command with these words in the folder `work`.
        work: A folder for a model and for reports.
        audits: The audited cases, by name.
    """
    yield "gradleak data", "photos" in gradleak("data").stdout, "lists photos"
    page = gradleak("run", "theorem1")
    said = page.stderr.count("\n") == 1 and "runs its pages from a checkout" in page.stderr
    yield "gradleak run", page.returncode == 2 and said, page.stderr.strip()
    (work / "mine.py").write_text(MODEL)
    for number, (name, words) in enumerate(audits.items()):
        ended = gradleak("audit", *words, "--data", "photos", "--out", f"report{number}")
        if ended.returncode != 0:
            yield f"audit of {name}", False, ended.stderr.strip()[-300:]
            continue
        findings = json.loads((work / f"report{number}" / "report.json").read_text())["findings"]
        best = max((one["measures"].get("image-psnr", 0.0) for one in findings), default=0.0)
        yield f"audit of {name}", bool(findings) if "--minutes" in words else best > 60, f"best image {best:.1f} dB"


def checks(python: Path, work: Path) -> Iterator[tuple[str, bool, str]]:
    """Yield each promise of the installed wheel, whether it holds, and the output."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("GRADLEAK", "PYTHON", "VIRTUAL_ENV"))}
    environment["HOME"] = str(work)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([python, *words], cwd=work, env=environment, capture_output=True, text=True, check=False)

    yield "needs nothing of the book", run("-c", "import papermill").returncode == 1, "papermill is not there"
    yield from promises(functools.partial(run, "-m", "gradleak"), work, AUDITS)


def main(kept: Path | None) -> int:
    """Print a line a check, and return how many promises do not hold."""
    with tempfile.TemporaryDirectory() as scratch:
        place, work = kept or Path(scratch) / "environment", Path(scratch) / "work"
        work.mkdir()
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", scratch, str(ROOT)]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(scratch).glob("*.whl")
        size = wheel.stat().st_size / 1e6
        wrong = size > 5
        print(f"{'WRONG' if wrong else 'holds'} a small wheel: {size:.1f} MB")
        python = place / "bin" / "python"
        if not python.is_file():
            venv.create(place, with_pip=True)
        print(f"installing {wheel.name} (several minutes the first time: torch is large)", flush=True)
        for options in (["-c", str(ROOT / "requirements.lock")], ["--no-deps", "--force-reinstall"]):
            pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, str(wheel)]
            subprocess.run(pip, check=True, cwd=scratch, env=os.environ | {"PYTHONPATH": ""})
        for promise, holds, seen in checks(python, work):
            wrong += not holds
            print(f"{'holds' if holds else 'WRONG':6} {promise}: {seen}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None))
