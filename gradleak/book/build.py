"""Build the book: run the changed pages in parallel, write the generated parts, and call jupyter-book."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from gradleak import paths, studies
from gradleak.errors import GradleakError
from gradleak.studies import Study

if TYPE_CHECKING:
    from gradleak.book.pages import PageRun

# What the HTML is made from: the book's files and pages, and files of measurements, which may be absent.
RENDERED = ("_config.yml", "book", "gradleak/book/build.py", "benchmarks/results.json", "benchmarks/gpu-check.json")


def build(profile: str = "quick", *, jobs: int | None = None, cluster: str | None = None) -> Path:
    """Run every changed page, write the generated parts and render the book.

    Args:
        profile: "quick" or "paper", the parameters with which the pages run.
        jobs: The number of pages that run at once.
        cluster: The address of a Dask scheduler on which their trials run.

    Returns:
        The file of the book's first page.
    """
    contents = _contents()
    ordered = sorted((studies.load(name) for name in studies.names()), key=lambda study: _place(study, contents))
    index = paths.root() / "_build" / "html" / "index.html"
    from gradleak.book import generated
    from gradleak.runs import records

    for study in ordered:
        records.recorded(study.name)  # a damaged record is an error now, not after all pages ran
    runs = _run_pages(ordered, profile, jobs, cluster)
    _remove_stale({run.notebook for run in runs.values()})
    generated.write(ordered, papers(), runs, jobs)
    _render(index)
    return index


def _inputs() -> str:
    """Return a hash of all files from which the HTML is made."""
    digest = hashlib.sha256()
    for base in (paths.root() / place for place in RENDERED):
        for file in sorted([base, *base.rglob("*")]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file.relative_to(paths.root())}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _contents() -> list[str]:
    """Return the patterns of pages in the table of contents, in their order."""
    toc = yaml.safe_load((paths.book() / "_toc.yml").read_text())
    chapters = (chapter for part in toc["parts"] for chapter in part["chapters"])
    pages = (page for chapter in chapters for page in (chapter, *chapter.get("sections", ())))
    return [page["glob"] for page in pages if "glob" in page]


def papers() -> list[str]:
    """Return the papers in the order of the table of contents."""
    return list(dict.fromkeys(Path(pattern).parent.name for pattern in _contents()))


def _place(study: Study, contents: list[str]) -> int:
    """Return the index of the first pattern in the table of contents that matches a page; refuse a page without one."""
    page = f"book/executed/{study.paper}/{study.name}"
    places = [place for place, pattern in enumerate(contents) if fnmatch(page, pattern)]
    if not places:
        raise GradleakError(f"book/_toc.yml does not name the page '{study.name}': add the line `- glob: {page}`")
    return places[0]


def _run_pages(ordered: list[Study], profile: str, jobs: int | None, cluster: str | None = None) -> dict[str, PageRun]:
    """Run all changed pages, even if some fail, and print the outcome of each; raise an error if any has failed."""
    from gradleak.book import pages

    pages.require_notebooks()
    runs: dict[str, PageRun] = {}
    for study in ordered:
        key = pages.page_key(study, studies.parameters(study, profile))
        if run := pages.finished(study, key, _folder(study)):
            runs[study.name] = run
            _say(len(runs), len(ordered), study, "unchanged")
    waiting, failed = [study for study in ordered if study.name not in runs], []
    for study, result in _attempts(waiting, profile, jobs, cluster):
        if isinstance(result, GradleakError):
            failed.append(study.name)
            outcome = f"failed: {result}"
        else:
            runs[study.name] = result
            outcome = f"{result.seconds:.0f} s"
        _say(len(runs) + len(failed), len(ordered), study, outcome)
    if failed:
        raise GradleakError(f"{len(failed)} of {len(ordered)} pages failed: {', '.join(failed)}; see the errors above")
    return {study.name: runs[study.name] for study in ordered}


def _attempts(
    waiting: list[Study], profile: str, jobs: int | None, cluster: str | None
) -> Iterator[tuple[Study, PageRun | GradleakError]]:
    """Run pages in parallel, with one job for each page; if pages run one by one, each uses all jobs for its trials."""
    from gradleak.runs import gpus, runner

    at_once = runner.processes(jobs, max(1, len(waiting)), "cpu")
    if at_once == 1:
        yield from ((study, _attempt(study.name, profile, jobs, cluster)) for study in waiting)
        return
    # The pages use all cores, so each gets a single thread.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # A fork of a process that has loaded libraries may hang, so the processes are new ones.
    pool = ProcessPoolExecutor(at_once, mp_context=multiprocessing.get_context("spawn"))
    try:
        shared = gpus.visible(), gpus.folder()
        begun = {pool.submit(_attempt, study.name, profile, 1, cluster, shared): study for study in waiting}
        yield from ((begun[done], done.result()) for done in as_completed(begun))
    except BrokenProcessPool as error:
        raise GradleakError("a page's process ended without an error message: was there too little memory?") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _attempt(
    name: str,
    profile: str,
    jobs: int | None,
    cluster: str | None,
    shared: tuple[list[str], Path] | None = None,
) -> PageRun | GradleakError:
    """Run a changed page in this process, which first takes one of the GPUs in `shared` if pages run in parallel."""
    from gradleak.book import pages
    from gradleak.runs import gpus, progress

    if shared:
        # The page's kernel inherits the chosen GPU through the environment.
        gpus.take(*shared)
    study = studies.load(name)
    # The progress bars of pages that run in parallel would overwrite each other.
    with progress.quiet() if jobs == 1 else contextlib.nullcontext():
        try:
            parameters = studies.parameters(study, profile)
            return pages.run_page(study, parameters, _folder(study), jobs=jobs, cluster=cluster)
        except GradleakError as error:
            return error


def _folder(study: Study) -> Path:
    return paths.executed() / study.paper


def _say(number: int, count: int, study: Study, what: str) -> None:
    print(f"[{number}/{count}] {study.paper}/{study.name}: {what}", flush=True)


def _remove_stale(kept: set[Path]) -> None:
    for notebook in paths.executed().glob("*/*.ipynb"):
        if notebook not in kept:
            notebook.unlink()
            notebook.with_suffix(".json").unlink(missing_ok=True)


def _render(index: Path) -> None:
    stamp = paths.root() / "_build" / "inputs.hash"
    inputs_hash = _inputs()
    if index.is_file() and stamp.is_file() and stamp.read_text() == inputs_hash:
        return
    from gradleak.runs import code

    stamp.unlink(missing_ok=True)
    # jupyter-book cannot be run by `python -m`, and the first line of its script fails if Python's path has a space.
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()",
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
        messages = [line for line in (result.stdout + result.stderr).splitlines() if _tells(line)]
        print("\n".join(messages[-40:]) or result.stdout[-4000:] + result.stderr[-4000:], file=sys.stderr)
        raise GradleakError(f"the book was not built without warnings: {len(messages)} lines above say why")
    stamp.write_text(inputs_hash)


def _tells(line: str) -> bool:
    # Kernels write a line with "WARNING" about their connection at each start.
    return not line.startswith("[IPKernelApp]") and any(
        word in line for word in ("WARNING", "ERROR", "Error:", "Exception")
    )
