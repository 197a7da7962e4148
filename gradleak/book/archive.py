"""Pack what is kept for good: sources with records, the built book and its PDF, with checksums, in one zip file.

`CITATION.cff` is the one place of the title, the authors and the abstract, and Zenodo reads it. The
manifest of CODECHECK (https://codecheck.org.uk/spec/config/1.0/) is made from it and from the records.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import yaml

from gradleak import claims, paths, studies
from gradleak.claims import Line
from gradleak.errors import GradleakError, InputError
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.tables import duration
from gradleak.storage import write_whole

MANIFEST, CITATION, SUMS = "codecheck.yml", "CITATION.cff", "SHA256SUMS"
# What a check must produce beside the records.
MADE = {
    "_build/html/book/index.html": "The book, by `make book`: every figure, table and verdict from the records.",
    "_build/gradleak.pdf": "The book as one PDF, by `make pdf`.",
}
# What is built, and the command that builds it.
BUILT = {"_build/html": "make book", "_build/gradleak.pdf": "make pdf"}
SPECIFICATION = "https://codecheck.org.uk/spec/config/1.0/"
HEAD = """---
# What a check of this book runs, and what it must produce. `gradleak archive --codecheck` writes this file from
# CITATION.cff and from the records in results/. Whoever checks adds the keys codechecker, report, certificate and
# check_time.
"""
SUMMARY = (
    "`make book` sets everything up and builds the book from the records (minutes). `gradleak verify` judges every "
    "claim on the records: the numbers of verdicts must be those stated here. `gradleak rerun PAGE --minutes 60` "
    "runs recorded trials of a page again and compares their rows within the tolerances of the columns. "
    "`gradleak record PAGE` computes a whole record anew; the stated time is that of one process."
)


def citation() -> dict[str, Any]:
    """Return the content of CITATION.cff."""
    content: dict[str, Any] = yaml.safe_load((paths.root() / CITATION).read_text("utf-8"))
    return content


def codecheck() -> str:
    """Return the manifest of CODECHECK: each record and the book, with what makes it and what it holds."""
    cited = citation()
    names = (one.get("name") or f"{one['family-names']}, {one['given-names']}" for one in cited["authors"])
    authors = [{"name": name} for name in names]
    paper: dict[str, Any] = {"title": cited["title"], "authors": authors}
    if "doi" in cited:
        paper["reference"] = f"https://doi.org/{cited['doi']}"
    manifest = [
        {"file": records.file_of(name).relative_to(paths.root()).as_posix(), "comment": _described(record)}
        for name in studies.names()
        if (record := records.recorded(name))
    ]
    manifest += [{"file": place, "comment": comment} for place, comment in MADE.items()]
    content = {"version": SPECIFICATION, "paper": paper, "manifest": manifest, "summary": SUMMARY}
    if "repository-code" in cited:
        content["repository"] = cited["repository-code"]
    return HEAD + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=118)


def _described(record: Record) -> str:
    study = studies.load(record.study)
    verdicts = claims.tally([Line(one, one) for one in claims.judgements(record).values()])
    return (
        f"{study.title} ({study.paper}, {study.place}), by `gradleak record {study.name}` on {record.where}: "
        f"{record.size} in {duration(record.seconds)}; claims: {verdicts or 'none'}."
    )


def write_codecheck() -> Path:
    """Write the manifest of CODECHECK to the top of the checkout, and return its file."""
    file, text = paths.root() / MANIFEST, codecheck().encode()
    write_whole(file, lambda stream: stream.write(text))
    return file


def write(out: Path | None = None) -> list[str]:
    """Write the archive of the last commit and of the built book, and return what it holds in lines.

    Its files are sorted, and dated as the commit, so that the same content gives the same zip file.

    Args:
        out: The zip file; by default gradleak-VERSION.zip in _build.
    """
    root, top = paths.root(), f"gradleak-{citation()['version']}"
    file, missing = out or root / "_build" / f"{top}.zip", []
    names = _git("ls-files", "-z").decode().split("\0")[:-1]
    if (root / MANIFEST).read_text("utf-8") != codecheck():
        raise InputError(f"{MANIFEST} is not up to date: run `gradleak archive --codecheck` and commit the file")
    if _git("status", "--porcelain").strip():
        raise InputError("the archive holds the last commit, and there are changes: commit or undo them")
    for place, command in BUILT.items():
        made = [one for one in (root / place, *(root / place).rglob("*")) if one.is_file()]
        names += [one.relative_to(root).as_posix() for one in made]
        missing += [f"not in it, because it is not built: {place} (`{command}` makes it)"] if not made else []
    files = {name: (root / name).read_bytes() for name in sorted(names)}
    sums = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in files.items()]
    files[SUMS] = "".join(sums).encode()
    date = time.gmtime(int(_git("log", "-1", "--format=%ct")))[:6]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{top}/{name}", date)
            # A shell script begins with "#!" and stays executable.
            entry.external_attr = (0o100755 if content.startswith(b"#!") else 0o100644) << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, compresslevel=9)
    write_whole(file, lambda stream: stream.write(packed.getvalue()))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    return [f"archive  {file}  ({len(files)} files)", f"sha256   {digest}", *missing]


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], cwd=paths.root(), capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise GradleakError("the archive holds the last commit of a git checkout, and there is none here") from error
