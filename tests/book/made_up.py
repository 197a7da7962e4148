"""Outcomes that no record states, for tests."""

from __future__ import annotations

import math
from typing import Any

from gradleak.studies.shared.outcomes import Outcome


def outcome(**changes: Any) -> Outcome:
    """Return an outcome of a made-up attack with some of its fields changed."""
    fields: dict[str, Any] = {
        "leak": "labels",
        "attack": "guesser",
        "network": "LeNet",
        "training": "untrained",
        "data": "digits",
        "batch": 8,
        "defense": "none",
        "client": "float32",
        "detail": "",
        "measure": "labels found",
        "unit": "%",
        "value": 50.0,
        "low": 40.0,
        "high": 60.0,
        "count": 100,
        "cases": "batches",
        "chance": 0.0,
        "cosine": math.nan,
        "page": "noise",
    }
    return Outcome(**fields | changes)
