"""Pack the trials that decide most claims for a bare machine: `make gpu-queue`, or `python -m tests.gpu.queue`.

The machine needs Python, pip and torch, and no network. The pack holds this package, the list of trials, the images and
weights that they read, and wheels of the packages that the machine lacks. The script beside it unpacks it, runs the
trials with several processes that share the GPU, and appends each finished trial to files in $OUT. So a stop at any
second loses only the running trials. `gradleak record --merge FILE` adds the trials to the records.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from gradleak import paths, studies
from gradleak.book import queue
from gradleak.book.queue import Entry
from gradleak.data.files import FILES
from gradleak.data.text import NAMES as TEXTS
from gradleak.errors import GradleakError, InputError
from gradleak.runs import code, golden
from gradleak.show.tables import duration

PACK, SCRIPT = "gpu-queue.zip", "gpu-queue.sh"
# What may travel (bytes), and the most characters of the script.
LARGEST, LONGEST = 64 * 2**20, 2000
# Packages that a machine with torch, pandas, scikit-image and matplotlib may lack.
LACKING = ("pydantic", "pydantic-core", "annotated-types", "typing-inspection", "lpips", "pyswarms")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 17, 5)] + ["manylinux2014_x86_64", "any"]
RUN = """set -u
here=$(mktemp -d) && python3 -m zipfile -e "${{PACK:-{pack}}}" "$here" && cd "$here" || exit 1
if ls wheels/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --target site wheels/*.whl || exit 1
fi
export PYTHONPATH="$here:$here/site" PYTHONUNBUFFERED=1 GRADLEAK_ROOT="$here" GRADLEAK_CACHE="$here/cache"
export GRADLEAK_DATA="$here/data" GRADLEAK_WEIGHTS="$here/weights"
# With MPS the kernels of several processes run side by side on one GPU.
if command -v nvidia-cuda-mps-control >/dev/null; then nvidia-cuda-mps-control -d; fi
python3 run_queue.py {minutes:g} {jobs} "${{OUT:-.}}/trials.jsonl"
"""
# Runs the trials that queue.json lists, on a machine that has neither the records nor the claims' parameters.
PROGRAM = """import json, pathlib, sys
from gradleak.book import queue

if __name__ == "__main__":
    minutes, jobs, out = sys.argv[1:]
    listed = json.loads(pathlib.Path("queue.json").read_text("utf-8"))
    entries = [queue.Entry(one["study"], one["inputs"], None, ()) for one in listed]
    for line in queue.run(entries, minutes=float(minutes), jobs=int(jobs), out=pathlib.Path(out), say=print):
        print(line)
"""


def pack(
    folder: Path, *, minutes: float = 9.0, jobs: int = 4, python: str = "3.12", lacking: Sequence[str] = LACKING,
    limit: int = LARGEST,
) -> list[str]:  # fmt: skip
    """Write the pack and its script into a folder, and return what they hold in sentences.

    Args:
        folder: The folder.
        minutes: The time after which the machine stops.
        jobs: The number of processes that share the GPU.
        python: The version of the machine's Python.
        lacking: The packages that the machine lacks; their wheels are downloaded.
        limit: The largest size of the pack in bytes.
    """
    everything = queue.queue()
    if not everything:
        raise InputError("no trial is waiting that would decide a claim")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        wheels = dict(_wheels(Path(place), python, lacking))
    fixed = dict(_code(everything)) | wheels
    entries, read = _fitting(everything, limit - len(_zipped(fixed)))
    listed = json.dumps([{"study": entry.study, "inputs": entry.inputs} for entry in entries])
    content = fixed | read | {"queue.json": listed.encode(), "run_queue.py": PROGRAM.encode()}
    file, script = folder / PACK, folder / SCRIPT
    file.write_bytes(_zipped(content))
    script.write_text(RUN.format(pack=PACK, minutes=minutes, jobs=jobs))
    if len(script.read_text()) >= LONGEST or file.stat().st_size > limit:
        raise GradleakError(f"the pack ({file.stat().st_size} bytes) or its script is too large")
    expected = sum(entry.gpu_seconds or 0.0 for entry in entries) / jobs
    return [
        f"{len(entries)} of {len(everything)} trials, {sum(len(entry.decides) for entry in entries)} claims, expected: "
        f"{duration(expected)} on a GPU with {jobs} processes, at most {minutes:g} min.",
        f"{file} ({file.stat().st_size / 2**20:.1f} MiB), {script} ({len(script.read_text())} characters).",
        f"There, with the pack beside it: `OUT=FOLDER bash {SCRIPT}`. Then here: `gradleak record --merge "
        "FOLDER/trials.jsonl`.",
    ]


def _code(entries: Sequence[Entry]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of the package, and those of the pages in the queue."""
    package = code.package_folder()
    for file in sorted(package.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"gradleak/{file.relative_to(package).as_posix()}", file.read_bytes()
    for name in dict.fromkeys(entry.study for entry in entries):
        for file in (studies.load(name).notebook, golden.file_of(name)):
            if file.is_file():
                yield file.relative_to(paths.root()).as_posix(), file.read_bytes()


def _wheels(place: Path, python: str, lacking: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Download wheels of packages, in the versions that this environment has, for another version of Python."""
    if not lacking:
        return
    from importlib.metadata import version

    command = [
        sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps",
        "--only-binary=:all:", "--python-version", python, "--implementation", "cp", "-d", str(place),
        *(word for platform in PLATFORMS for word in ("--platform", platform)),
        *(f"{name}=={version(name)}" for name in lacking),
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise GradleakError(f"the wheels cannot be downloaded: {result.stderr.strip().splitlines()[-1:]}")
    for file in sorted(place.glob("*.whl")):
        yield f"wheels/{file.name}", file.read_bytes()


def _fitting(entries: Sequence[Entry], room: int) -> tuple[list[Entry], dict[str, bytes]]:
    """Return the first trials whose images and weights fit into so many bytes, with these files."""
    weights = paths.weights_folder()
    trunk = weights / "alexnet_features.pt" if weights else None
    files = {f"weights/{trunk.name}": trunk.read_bytes()} if trunk is not None and trunk.is_file() else {}
    fitting: list[Entry] = []
    splits: dict[str, set[str]] = {}
    for entry in entries:
        experiment = studies.load(entry.study).experiment(entry.inputs)
        wanted = {name: set(experiment.splits(name)) for name in experiment.reads() if name in FILES or name in TEXTS}
        together = {name: splits.get(name, set()) | wanted.get(name, set()) for name in splits.keys() | wanted.keys()}
        if together == splits:  # the trial reads nothing that the pack does not hold already
            fitting.append(entry)
            continue
        read = files | {file: content for name in together for file, content in _dataset(name, together[name])}
        if len(_zipped(read)) <= room:
            fitting.append(entry)
            splits = together
    if not fitting:
        raise InputError("the images of the first trials do not fit into the pack")
    return fitting, files | {file: content for name in splits for file, content in _dataset(name, splits[name])}


def _dataset(name: str, splits: set[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the file of a dataset with only some of its splits, if the file keeps the splits apart."""
    folder = paths.data_folder()
    if folder is None or name not in FILES:
        return
    file = folder / FILES[name].file
    with np.load(file, allow_pickle=False) as archive:
        arrays = {key: archive[key] for key in archive.files}
    unused = tuple(f"{split}_" for split in ("train", "test") if split not in splits)
    dropped = [key for key in arrays if unused and key.startswith(unused)]
    if not dropped:
        yield f"data/{file.name}", file.read_bytes()
        return
    stream = io.BytesIO()
    np.savez_compressed(stream, **{key: array[:0] if key in dropped else array for key, array in arrays.items()})
    yield f"data/{file.name}", stream.getvalue()


def _zipped(content: dict[str, bytes]) -> bytes:
    """Return a zip archive of files."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, one in content.items():
            archive.writestr(name, one)
    return stream.getvalue()


def main(words: Sequence[str] | None = None) -> None:
    """Write the pack."""
    parser = argparse.ArgumentParser(description="Pack the trials that decide most claims for a machine with a GPU.")
    parser.add_argument("--out", type=Path, default=Path("_build/gpu-queue"), help="the folder for the pack")
    parser.add_argument("--minutes", type=float, default=9.0, help="the time after which the machine stops")
    parser.add_argument("--jobs", type=int, default=4, help="processes that share the GPU")
    parser.add_argument("--python", default="3.12", help="the version of the machine's Python")
    parser.add_argument("--lacking", nargs="*", default=LACKING, help="packages that the machine lacks")
    parser.add_argument("--limit", type=float, default=LARGEST / 2**20, help="the largest size of the pack in MiB")
    asked = parser.parse_args(words)
    options = {"minutes": asked.minutes, "jobs": asked.jobs, "python": asked.python, "lacking": asked.lacking}
    for line in pack(asked.out, limit=int(asked.limit * 2**20), **options):
        print(line)


if __name__ == "__main__":
    main()
