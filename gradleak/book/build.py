"""Builds the book: runs the pages that changed, writes the generated parts, calls jupyter-book."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import yaml

from gradleak import claims, paths, studies
from gradleak.book import cover, pages, performance, records, sources
from gradleak.book.pages import PageRun
from gradleak.book.records import Record
from gradleak.errors import GradleakError
from gradleak.studies import Study

# What the rendered book is made from, beside the executed pages.
SOURCES = ("_config.yml", "book", "gradleak/book/build.py")


def build(profile: str = "quick", *, jobs: int | None = None) -> Path:
    """Run every page that changed, write the generated parts and render the book; return its first page."""
    contents = _contents()
    loaded = sorted((studies.load(name) for name in studies.names()), key=lambda study: _place(study, contents))
    runs = {study.name: _page(study, profile, jobs, f"{n}/{len(loaded)}") for n, study in enumerate(loaded, 1)}
    _remove_stale({run.notebook for run in runs.values()})
    fresh = {name: records.read(run.record) for name, run in runs.items()}
    _write_generated(loaded, runs, fresh)
    return _render()


def _contents() -> list[str]:
    """Return the patterns of pages in the table of contents, in its order."""
    toc = yaml.safe_load((paths.book() / "_toc.yml").read_text())
    chapters = (chapter for part in toc["parts"] for chapter in part["chapters"])
    return [page["glob"] for chapter in chapters for page in chapter.get("sections", ())]


def papers() -> list[str]:
    """Return the papers in the order of the contents."""
    return list(dict.fromkeys(Path(pattern).parent.name for pattern in _contents()))


def _place(study: Study, contents: list[str]) -> int:
    """Return where in the table of contents a page first fits."""
    page = f"book/executed/{study.paper}/{study.name}"
    return next((place for place, pattern in enumerate(contents) if fnmatch(page, pattern)), len(contents))


def _page(study: Study, profile: str, jobs: int | None, place: str) -> PageRun:
    run = pages.run_page(study, studies.parameters(study, profile), paths.executed() / study.paper, jobs=jobs)
    took = "unchanged" if run.cached else f"{run.seconds:.0f} s"
    print(f"[{place}] {study.paper}/{study.name}: {took}", flush=True)
    return run


def _remove_stale(kept: set[Path]) -> None:
    for notebook in paths.executed().glob("*/*.ipynb"):
        if notebook not in kept:
            notebook.unlink()
            notebook.with_suffix(".json").unlink(missing_ok=True)


def _write_generated(loaded: list[Study], runs: dict[str, PageRun], fresh: dict[str, Record]) -> None:
    folder = paths.book() / "generated"
    folder.mkdir(parents=True, exist_ok=True)
    parts = {f"pages-{paper}.md": _pages(paper, loaded, fresh) for paper in papers()}
    parts["scoreboard.md"] = _scoreboard(loaded, fresh)
    parts["status.md"] = _status(loaded, runs, fresh)
    parts["performance.md"] = performance.write_page(folder)
    for name, text in parts.items():
        file = folder / name
        # An unchanged file keeps its time, so that nothing is rendered for it again.
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)
    picture = folder / "cover.png"
    key = folder / "cover.key"
    now = sources.of_modules("gradleak.book.cover").digest
    if not picture.is_file() or not key.is_file() or key.read_text() != now:
        cover.make_cover(picture)
        key.write_text(now)


def _pages(paper: str, loaded: list[Study], fresh: dict[str, Record]) -> str:
    own = [study for study in loaded if study.paper == paper]
    if not own:
        return "*No page of this part is written yet.*\n"
    lines = ["| page | regenerates | claims |", "| --- | --- | --- |"]
    for study in own:
        tally = _tally(claims.lines(fresh, study.name))
        lines.append(f"| {{doc}}`{study.title} <executed/{paper}/{study.name}>` | {study.place} | {tally} |")
    return "\n".join(lines) + "\n"


def _tally(lines: list[claims.Line]) -> str:
    counts: dict[str, int] = {}
    for line in lines:
        counts[line.verdict_text] = counts.get(line.verdict_text, 0) + 1
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())


def _scoreboard(loaded: list[Study], fresh: dict[str, Record]) -> str:
    lines = claims.lines(fresh)
    parts = [f"**{len(lines)} claims**: {_tally(lines)}."]
    for paper in papers():
        own = [study for study in loaded if study.paper == paper]
        parts += [f"## {paper}"] if own else []
        for study in own:
            parts.append(f"{{doc}}`{study.title} <executed/{paper}/{study.name}>`")
            parts.append(claims.scoreboard(fresh, study)._repr_markdown_())
    return "\n\n".join(parts) + "\n"


def _status(loaded: list[Study], runs: dict[str, PageRun], fresh: dict[str, Record]) -> str:
    lines = [
        "| page | profile | run time | device | date | gradleak | torch |",
        "| --- | --- | ---: | --- | --- | --- | --- |",
    ]
    for study in loaded:
        facts = fresh[study.name].provenance
        lines.append(
            f"| {{doc}}`{study.name} <executed/{study.paper}/{study.name}>` | {fresh[study.name].profile} "
            f"| {runs[study.name].seconds:.0f} s | {facts.device} | {facts.date} | {facts.commit} "
            f"| {facts.versions['torch']} |"
        )
    return ":::{table} Every page: when and where it ran.\n:name: tab-status\n\n" + "\n".join(lines) + "\n:::\n"


def _render() -> Path:
    root, output = paths.root(), paths.root() / "_build"
    index = output / "html" / "index.html"
    stamp = output / "inputs.hash"
    now = _inputs_hash(root)
    if index.is_file() and stamp.is_file() and stamp.read_text() == now:
        return index
    stamp.unlink(missing_ok=True)
    # jupyter-book has no `python -m` of its own, and its script's first line may not survive a path with a space.
    command = [
        sys.executable, "-c", "from jupyter_book.cli.main import main; main()",
        "build", ".", "--toc", "book/_toc.yml", "--path-output", ".",
        "-W", "-n", "--keep-going",
    ]  # fmt: skip
    # Sphinx writes ANSI colours and progress for terminals; a log should read plainly.
    environment = os.environ | {"NO_COLOR": "1", "PYTHONWARNINGS": "ignore"}
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        said = [line for line in (result.stdout + result.stderr).splitlines() if _tells(line)]
        print("\n".join(said[-40:]) or result.stdout[-4000:] + result.stderr[-4000:], file=sys.stderr)
        raise GradleakError(f"the book was not built without warnings: {len(said)} lines above say why")
    stamp.write_text(now)
    return index


def _tells(line: str) -> bool:
    return any(word in line for word in ("WARNING", "ERROR", "Error:", "Exception"))


def _inputs_hash(root: Path) -> str:
    digest = hashlib.sha256()
    for source in SOURCES:
        base = root / source
        for file in sorted([base] if base.is_file() else [f for f in base.rglob("*") if f.is_file()]):
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()
