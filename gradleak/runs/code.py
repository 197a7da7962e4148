"""Name the code that computes something by one coarse key, so that results of older code are not taken from a cache.

The key covers whole files: any edit of the package's attacks, models or data lets all trials run again. Whether a
change of the code changes a *recorded* result is another question, which the golden rows answer (`runs.golden`).
"""

from __future__ import annotations

import hashlib
import os
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


def key(study: Study, without: tuple[str, ...] = SHOWING) -> str:
    """Return the key of the package's files and of the study's module, without other pages' modules.

    Args:
        study: The study.
        without: Parts of the package that are left out; the default is right for trials.
    """
    folder, digest = package_folder(), hashlib.sha256()
    others = set(studies.module_files().values()) - {study.module_file}
    for file in sorted(set(folder.rglob("*.py")) - others):
        if file.relative_to(folder).parts[0] not in without:
            digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]
