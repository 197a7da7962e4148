"""What is kept for good: one zip that is made alike twice, with checksums, a manifest of CODECHECK and metadata."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from gradleak import __version__, paths
from gradleak.book import archive
from gradleak.errors import GradleakError, InputError
from gradleak.runs import records, runner
from tests.checkout import Toy

CITATION = """cff-version: 1.2.0
title: A toy
version: 1.2.3
doi: 10.1/toy
authors: [{name: The makers}, {family-names: Maker, given-names: Ada}]
"""


GIT = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")


def test_the_archive_is_whole_and_made_alike_twice(checkout: Toy, tmp_path: Path) -> None:
    root = checkout.root
    records.write(runner.run_study("toy", checkout.parameters()), records.file_of("toy"))
    (root / "CITATION.cff").write_text(CITATION)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / ".gitignore").write_text("_build\ncache\ntrace\n__pycache__\ngradleak\n")
    archive.write_codecheck()
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "all"]):
        subprocess.run(["git", *GIT, *words], cwd=root, check=True, capture_output=True)
    (root / "_build" / "html").mkdir(parents=True)
    (root / "_build" / "html" / "index.html").write_text("a book")
    head, digest, missing = archive.write()
    assert missing == "not in it, because it is not built: _build/gradleak.pdf (`make pdf` makes it)"
    made = root / "_build" / "gradleak-1.2.3.zip"
    assert digest == f"sha256   {hashlib.sha256(made.read_bytes()).hexdigest()}"
    assert archive.write(root / "_build" / "again.zip")[1] == digest
    with zipfile.ZipFile(made) as packed:
        files = {name.removeprefix("gradleak-1.2.3/"): packed.read(name) for name in packed.namelist()}
        modes = {info.filename.partition("/")[2]: info.external_attr >> 16 for info in packed.infolist()}
    assert head == f"archive  {made}  ({len(files)} files)"
    assert set(files) >= {
        "results/toy2020/toy.json", "notebooks/toy2020/toy.ipynb", "_build/html/index.html",
        "CITATION.cff", "codecheck.yml", "SHA256SUMS",
    }  # fmt: skip
    assert (modes["run.sh"], modes["CITATION.cff"]) == (0o100755, 0o100644)
    sums = dict(line.split("  ")[::-1] for line in files.pop("SHA256SUMS").decode().splitlines())
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert yaml.safe_load(archive.codecheck())["paper"] == {
        "title": "A toy", "authors": [{"name": "The makers"}, {"name": "Maker, Ada"}],
        "reference": "https://doi.org/10.1/toy",
    }  # fmt: skip
    (root / "new").write_text("new")
    with pytest.raises(InputError, match="there are changes: commit or undo them"):
        archive.write()
    records.write(runner.run_study("toy", checkout.parameters(samples=5)), records.file_of("toy"))
    with pytest.raises(InputError, match=r"run `gradleak archive --codecheck` and commit the file"):
        archive.write()
    (root / ".git").rename(tmp_path / "moved")
    with pytest.raises(GradleakError, match="the last commit of a git checkout, and there is none"):
        archive.write()


def test_the_manifest_is_up_to_date() -> None:
    text = (paths.root() / archive.MANIFEST).read_text("utf-8")
    assert text == archive.codecheck(), "run `gradleak archive --codecheck`"
    named = {entry["file"] for entry in yaml.safe_load(text)["manifest"] if entry["comment"]}
    recorded = {file.relative_to(paths.root()).as_posix() for file in paths.results().glob("*/*.json")}
    assert named - recorded == set(archive.MADE)
    assert recorded <= named


def test_the_citation_is_whole() -> None:
    from pybtex.database import parse_file

    content = archive.citation()
    assert (content["cff-version"], str(content["version"])) == ("1.2.0", __version__)
    papers = {file.parent.name for file in paths.notebooks().glob("*/*.ipynb")}
    known = parse_file(paths.book() / "references.bib").entries
    plain = str.maketrans("", "", "{}")
    expected = {known[key].fields["title"].translate(plain): known[key] for key in papers}
    assert {reference["title"] for reference in content["references"]} == set(expected)
    for reference in content["references"]:
        assert str(reference["year"]) == expected[reference["title"]].fields["year"]
