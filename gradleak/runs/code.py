"""Name the code that computes something by one coarse key, so that results of older code are not taken from a cache.

The key covers whole files: any edit of the package's attacks, models or data lets all trials run again. Whether a
change of the code changes a *recorded* result is another question, which the golden rows answer (`runs.golden`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import gradleak
from gradleak.runs import studies
from gradleak.runs.studies import Study

# What judges and shows results, and does not compute them.
SHOWING = ("book", "claims", "show", "cli.py")


def package_folder() -> Path:
    """Return the folder of the package `gradleak` that this process has imported."""
    return Path(gradleak.__file__).resolve().parent


def search_path() -> str:
    """Return the PYTHONPATH with which another process imports the same code, even if another checkout is installed."""
    return os.pathsep.join(filter(None, [str(package_folder().parent), os.environ.get("PYTHONPATH")]))


def of_trials(study: Study) -> str:
    """Return the key of the code that computes a study's trials."""
    folder = package_folder()
    showing = tuple(folder / name for name in SHOWING)
    return _key(study, (file for file in _files() if not any(file.is_relative_to(place) for place in showing)))


def of_page(study: Study) -> str:
    """Return the key of all code that a study's page uses."""
    return _key(study, _files())


def _files() -> Iterator[Path]:
    """Yield the files of the package, without the modules of pages."""
    pages = studies.module_files().values()
    yield from sorted(set(package_folder().rglob("*.py")).difference(pages))


def _key(study: Study, files: Iterator[Path]) -> str:
    digest = hashlib.sha256()
    for file in (*files, study.module_file):
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
