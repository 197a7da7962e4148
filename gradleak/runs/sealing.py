"""Add a SHA-256 of its content to a file of results, and check it, so that edits by hand are noticed."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gradleak.errors import InputError
from gradleak.runs.plain import Columns

FIELD = "sha256"


def sealed(content: Columns) -> Columns:
    """Return a file's content with a field that holds the SHA-256 of all other fields."""
    return content | {FIELD: _sha256(content)}


def bare(content: Any) -> Any:
    """Return a file's content without its SHA-256."""
    return {name: content[name] for name in content if name != FIELD} if isinstance(content, dict) else content


def check(content: Columns, name: str) -> None:
    """Raise an InputError, which calls the file `name`, if the SHA-256 of its content is missing or wrong."""
    if FIELD not in content:
        wrong = "was edited, or an earlier version wrote it: it does not state the SHA-256 of its content"
    elif content[FIELD] != _sha256(bare(content)):
        wrong = "was edited: its content does not have the SHA-256 that it states"
    else:
        return
    raise InputError(f"{name} {wrong}; take the edit back, or run the study again")


def _sha256(content: Columns) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
