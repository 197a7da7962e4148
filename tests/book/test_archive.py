"""What is kept for good: one zip that is made alike twice, and its citation."""

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
from tests.checkout import Toy

TOP = f"gradleak-{__version__}"
BUILT = ("_build/html/index.html", "_build/html/book/toy.html")


@pytest.fixture
def kept(checkout: Toy) -> Toy:
    """Give a checkout that is committed, with a built book."""
    (checkout.root / ".gitignore").write_text("_build\ncache\ntrace\n__pycache__\ngradleak\n")
    name = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], [*name, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", *words], cwd=checkout.root, check=True, capture_output=True)
    for place in BUILT:
        file = checkout.root / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(place)
    return checkout


def test_the_archive_is_whole_and_made_alike_twice(kept: Toy, tmp_path: Path) -> None:
    head, digest, missing = archive.write()
    made = kept.root / "_build" / f"{TOP}.zip"
    assert missing == "not in it, because it is not built: _build/gradleak.pdf (`make pdf` makes it)"
    assert digest == f"sha256   {hashlib.sha256(made.read_bytes()).hexdigest()}"
    assert archive.write(kept.root / "_build" / "again.zip")[1] == digest
    with zipfile.ZipFile(made) as packed:
        files = {name.removeprefix(f"{TOP}/"): packed.read(name) for name in packed.namelist()}
    assert head.startswith(f"archive  {made}  (")
    assert files[BUILT[1]] == BUILT[1].encode()
    assert set(files) >= {"notebooks/toy2020/toy.ipynb", "book/_toc.yml", *BUILT}
    (kept.root / "new").write_text("new")
    with pytest.raises(InputError, match="there are changes: commit or undo them"):
        archive.write()
    (kept.root / ".git").rename(tmp_path / "moved")
    with pytest.raises(GradleakError, match="the last commit of a git checkout, and there is none"):
        archive.write()


def test_the_citation_names_the_version_and_every_paper() -> None:
    content = yaml.safe_load((paths.root() / "CITATION.cff").read_text("utf-8"))
    assert str(content["version"]) == __version__
    papers = {file.parent.name for file in paths.notebooks().glob("*/*.ipynb")}
    assert len(content["references"]) == len(papers)
