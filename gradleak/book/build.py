"""Build the book: run the changed pages in parallel, write the generated parts, and call jupyter-book."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from pathlib import Path

import joblib
import yaml

from gradleak import paths, studies
from gradleak.book import generated, pages
from gradleak.book.pages import PageRun
from gradleak.errors import GradleakError
from gradleak.runs import code, gpus, progress, records, runner
from gradleak.studies import Study

# What the HTML is made from: the book's files and pages, and files of measurements, which may be absent.
RENDERED = ("_config.yml", "book", "gradleak/book/build.py", "benchmarks/results.json", "benchmarks/gpu-check.json")
# Words in the lines of jupyter-book's output that say what is wrong.
TELLING = ("WARNING", "ERROR", "Error:", "Exception")


def build(profile: str = "quick", *, jobs: int | None = None, cluster: str | None = None) -> Path:
    """Run every changed page, write the generated parts and render the book.

    Args:
        profile: "quick" or "paper", the parameters with which the pages run.
        jobs: The number of pages that run at once.
        cluster: The address of a Dask scheduler on which their trials run.

    Returns:
        The file of the book's first page.
    """
    pages.require_notebooks()
    ordered = in_order()
    for study in ordered:
        records.recorded(study.name)  # a damaged record is an error now, not after all pages ran
    runs = run_pages(ordered, profile, jobs, cluster)
    kept = {file for run in runs.values() for file in (run.notebook, run.record)}
    for file in paths.executed().glob("*/*.*"):
        if file not in kept:
            file.unlink()
    generated.write(ordered, papers(), runs)
    return _render()


def _contents() -> list[str]:
    """Return the patterns of pages in the table of contents, in their order."""
    toc = yaml.safe_load((paths.book() / "_toc.yml").read_text())
    chapters = (chapter for part in toc["parts"] for chapter in part["chapters"])
    entries = (entry for chapter in chapters for entry in (chapter, *chapter.get("sections", ())))
    return [entry["glob"] for entry in entries if "glob" in entry]


def papers() -> list[str]:
    """Return the papers in the order of the table of contents."""
    return list(dict.fromkeys(Path(pattern).parent.name for pattern in _contents()))


def in_order() -> list[Study]:
    """Return all studies in the order of the table of contents; refuse one that is not in it."""
    patterns, places = _contents(), {}
    for study in map(studies.load, studies.names()):
        page = f"book/executed/{study.paper}/{study.name}"
        matching = [place for place, pattern in enumerate(patterns) if fnmatch(page, pattern)]
        if not matching:
            raise GradleakError(f"book/_toc.yml does not name the page '{study.name}': add the line `- glob: {page}`")
        places[study] = matching[0]
    return sorted(places, key=places.__getitem__)


def run_pages(
    ordered: list[Study], profile: str, jobs: int | None = None, cluster: str | None = None
) -> dict[str, PageRun]:
    """Run all changed pages, even if some fail, and print the outcome of each; raise an error if any has failed."""
    runs: dict[str, PageRun] = {}
    failed: list[str] = []

    def note(study: Study, outcome: str) -> None:
        done = len(runs) + len(failed)
        print(f"[{done}/{len(ordered)}] {study.paper}/{study.name}: {outcome}", flush=True)

    for study in ordered:
        key = pages.page_key(study, studies.parameters(study, profile))
        if run := pages.finished(study, key, paths.executed() / study.paper):
            runs[study.name] = run
            note(study, "unchanged")
    waiting = [study for study in ordered if study.name not in runs]
    # Pages that run one by one have all jobs for their trials.
    at_once = runner.processes(jobs, max(1, len(waiting)), "cpu")
    each = jobs if at_once == 1 else 1
    tasks = (joblib.delayed(_attempt)(study.name, profile, each, cluster) for study in waiting)
    try:
        with joblib.parallel_config(backend="loky", inner_max_num_threads=1):
            outcomes = joblib.Parallel(at_once, return_as="generator_unordered")(tasks)
        for name, result in outcomes:
            if isinstance(result, GradleakError):
                failed.append(name)
                note(studies.load(name), f"failed: {result}")
            else:
                runs[name] = result
                note(studies.load(name), f"{result.seconds:.0f} s")
    except BrokenProcessPool as error:
        raise GradleakError("a page's process ended without an error message: was there too little memory?") from error
    if failed:
        raise GradleakError(f"{len(failed)} of {len(ordered)} pages failed: {', '.join(failed)}; see the errors above")
    return {study.name: runs[study.name] for study in ordered}


def _attempt(name: str, profile: str, jobs: int | None, cluster: str | None) -> tuple[str, PageRun | GradleakError]:
    """Run a changed page in this process, which first takes one of the GPUs if pages may run in parallel."""
    if jobs == 1:
        # The page's kernel inherits the chosen GPU through the environment.
        gpus.take()
    study = studies.load(name)
    # The progress bars of pages that run in parallel would overwrite each other.
    with progress.quiet() if jobs == 1 else contextlib.nullcontext():
        try:
            parameters = studies.parameters(study, profile)
            return name, pages.run_page(study, parameters, paths.executed() / study.paper, jobs=jobs, cluster=cluster)
        except GradleakError as error:
            return name, error


def _inputs() -> str:
    """Return a hash of all files from which the HTML is made."""
    digest = hashlib.sha256()
    for base in (paths.root() / place for place in RENDERED):
        for file in sorted([base, *base.rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(paths.root())}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _render() -> Path:
    """Render the book with jupyter-book if a file that it is made from has changed; return its first page."""
    stamp, index = paths.root() / "_build" / "inputs.hash", paths.root() / "_build" / "html" / "index.html"
    inputs_hash = _inputs()
    if index.is_file() and stamp.is_file() and stamp.read_text() == inputs_hash:
        return index
    stamp.unlink(missing_ok=True)
    # jupyter-book cannot be run by `python -m`, and the first line of its script fails if Python's path has a space.
    start = "from gradleak.book import kernels; kernels.fork(); from jupyter_book.cli.main import main; main()"
    command = [
        sys.executable, "-c", start,
        "build", ".", "--toc", "book/_toc.yml", "--path-output", ".",
        "-W", "-n", "--keep-going",
    ]  # fmt: skip
    # The notebooks in book/ are executed by myst-nb, whenever a file that they read may have changed.
    for notebook in paths.book().glob("*.ipynb"):
        notebook.touch()
    environment = os.environ | {
        "NO_COLOR": "1",  # without the colours that Sphinx writes for terminals, the log is readable
        "PYTHONWARNINGS": "ignore",
        "GRADLEAK_ROOT": str(paths.root()),
        "PYTHONPATH": code.search_path(),
    }
    result = subprocess.run(command, cwd=paths.root(), capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        output = result.stdout + result.stderr
        # Kernels write a line with "WARNING" about their connection at each start.
        lines = [line for line in output.splitlines() if not line.startswith("[IPKernelApp]")]
        messages = [line for line in lines if any(word in line for word in TELLING)]
        print("\n".join(messages[-40:]) or output[-8000:], file=sys.stderr)
        raise GradleakError(f"the book was not built without warnings: {len(messages)} lines above say why")
    stamp.write_text(inputs_hash)
    return index
