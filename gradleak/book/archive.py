"""Pack what is kept for good: sources with records, the built book and its PDF, in one zip file."""

from __future__ import annotations

import hashlib
import io
import subprocess
import time
import zipfile
from pathlib import Path

from gradleak import __version__, paths
from gradleak.errors import GradleakError, InputError
from gradleak.storage import write_whole

# What is built, and the command that builds it.
BUILT = {"_build/html": "make book", "_build/gradleak.pdf": "make pdf"}


def write(out: Path | None = None) -> list[str]:
    """Write the archive of the last commit and of the built book, and return what it holds in lines.

    All files are dated as the commit, so that the same content gives the same zip file.

    Args:
        out: The zip file; by default gradleak-VERSION.zip in _build.
    """
    root, top = paths.root(), f"gradleak-{__version__}"
    file, lines = out or root / "_build" / f"{top}.zip", []
    if _git("status", "--porcelain").strip():
        raise InputError("the archive holds the last commit, and there are changes: commit or undo them")
    packed = io.BytesIO(_git("archive", "--format=zip", f"--prefix={top}/", "HEAD"))
    date = time.gmtime(int(_git("log", "-1", "--format=%ct")))[:6]
    with zipfile.ZipFile(packed, "a", zipfile.ZIP_DEFLATED) as archive:
        for place, command in BUILT.items():
            made = sorted(one for one in (root / place, *(root / place).rglob("*")) if one.is_file())
            for one in made:
                entry = zipfile.ZipInfo(f"{top}/{one.relative_to(root).as_posix()}", date)
                archive.writestr(entry, one.read_bytes(), zipfile.ZIP_DEFLATED)
            lines += [] if made else [f"not in it, because it is not built: {place} (`{command}` makes it)"]
        count = len(archive.namelist())
    write_whole(file, lambda stream: stream.write(packed.getvalue()))
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    return [f"archive  {file}  ({count} files)", f"sha256   {digest}", *lines]


def _git(*words: str) -> bytes:
    try:
        return subprocess.run(["git", *words], cwd=paths.root(), capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise GradleakError("the archive holds the last commit of a git checkout, and there is none here") from error
