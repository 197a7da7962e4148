"""The trials of the pages that a GPU may run, and how their rows are compared."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from gradleak import data, studies
from gradleak.runs import comparing, golden, runner
from gradleak.runs.plain import plain, restored
from gradleak.runs.records import Trial, part_of

RELATIVE, ABSOLUTE = 1e-6, 1e-8


@functools.cache
def trials(name: str) -> dict[str, Trial]:
    """Return a page's first golden trial of each part, without parts that stay on the CPU or lack their data."""
    study, first = studies.load(name), dict[str, Trial]()
    missing = {state.name for state in data.states() if state.state in ("missing", "damaged")}
    for one in restored(json.loads(golden.file_of(name).read_text("utf-8"))):
        trial = Trial(inputs=one["inputs"], rows=one["rows"], seconds=0.0)
        kind = study.experiment(trial.inputs)
        if not kind.stays_on_cpu and not missing.intersection(kind.reads()):
            first.setdefault(part_of(trial), trial)
    return first


def parts() -> list[tuple[str, str]]:
    """Return every page that may run on a GPU with each of its parts; "" for a page that has none."""
    return [(name, part) for name in studies.names() for part in trials(name)]


def rows_on(device: str, name: str, part: str) -> list[dict[str, Any]]:
    """Return the rows of a trial on a device, without the columns that hold times."""
    study = studies.load(name)
    with runner._settled(accelerated=device == "cuda"):
        found = plain(study.run(trials(name)[part].inputs | {"device": device}), name)
    return [{key: one for key, one in row.items() if not comparing.tells_time(study, key)} for row in found]


def different(found: Any, expected: Any) -> list[str]:
    """Return where two results differ by more than rounding, and by what."""
    return [
        f"{place}: {own!r} is not {wanted!r}"
        for place, own, wanted in comparing.pairs(found, expected)
        if not same(own, wanted)
        and not (
            isinstance(own, float)
            and isinstance(wanted, float)
            and math.isclose(own, wanted, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        )
    ]


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the last bit; NaN equals NaN."""
    return type(one) is type(other) and bool(one == other or (one != one and other != other))
