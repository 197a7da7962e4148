"""The smallest trial of every part of every page, on the CPU and on the pretended GPU."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any
from unittest import mock

from gradleak import studies
from gradleak.images.matching import engine, optimizers
from gradleak.runs import comparing, runner
from gradleak.runs.plain import plain

# The pretended GPU runs the CPU's own kernels, so that rows are the same to the last bit, but for these pages.
ROUNDED = {
    "sentences": "the CPU's recurrent layers are oneDNN's, a GPU's are made of single steps",
    "batches": "least squares come back from the CPU with their numbers in another order in memory",
    "audit": "least squares come back from the CPU with their numbers in another order in memory",
}
RELATIVE, ABSOLUTE = 1e-6, 1e-8
# On a GPU no attack waits for the line search of another, so that other attacks are in a batch together, and the host
# rarely reads how many pairs of L-BFGS are in use. Both change the order of sums, and twenty iterations amplify this to
# a tenth. For these pages each attack is compared alone, and the host reads after every round.
ALONE = {"cnn-reconstruction", "feature-matching"}


def parts() -> list[tuple[str, str]]:
    """Return every page with each of its parts; "" for a page that has none.

    Parts whose experiments stay on the CPU are left out: there is nothing that could differ.
    """
    pages = [name for name in studies.names() if not drops_its_device(name)]
    return [(name, part) for name in pages for part in _trials(name) if part not in _staying(name)]


def drops_its_device(name: str) -> bool:
    """Whether all experiments of a page stay on the CPU."""
    return _staying(name) == set(studies.load(name).experiments)


def _staying(name: str) -> set[str]:
    """Return the parts of a page whose experiments stay on the CPU."""
    return {part for part, kind in studies.load(name).experiments.items() if kind.stays_on_cpu}


def _trials(name: str) -> dict[str, dict[str, Any]]:
    """Return a page's first trial of each part, at its smallest parameters."""
    study = studies.load(name)
    first: dict[str, dict[str, Any]] = {}
    for inputs in study.trials(studies.parameters(study, "quick", study.smallest | {"device": "cpu"})):
        first.setdefault(str(inputs.get("part", "")), inputs)
    return first


def rows_on(device: str, name: str, part: str) -> list[dict[str, Any]]:
    """Return the rows of a trial on a device, without the columns that tell times."""
    study = studies.load(name)
    with runner._settled(1, accelerated=device == "cuda"):
        found = plain(study.run(_trials(name)[part] | {"device": device}), name)
    return [{key: one for key, one in row.items() if not comparing.tells_time(study, key)} for row in found]


def compared(name: str, part: str) -> list[str]:
    """Return where the rows of a trial on the pretended GPU differ from those on the CPU."""
    from tests.pretended import pretended_gpu

    with _alone() if name in ALONE else contextlib.nullcontext():
        expected = rows_on("cpu", name, part)
        with pretended_gpu() as gpu:
            found = rows_on(gpu.device, name, part)
    return different(found, expected, rounded=name in ROUNDED)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Let matching run one attack at a time, and read its state after every round."""
    with (
        mock.patch.object(engine, "_chunk", return_value=1),
        mock.patch.object(optimizers, "steps_a_read", return_value=1),
    ):
        yield


def different(found: Any, expected: Any, *, rounded: bool = False) -> list[str]:
    """Return where two results differ, and by what. `rounded`: numbers may differ by rounding."""
    same = close if rounded else exact
    return [
        f"{place}: {own!r} is not {wanted!r}"
        for place, own, wanted in comparing.pairs(found, expected)
        if not same(own, wanted)
    ]


def exact(one: Any, other: Any) -> bool:
    """Whether two values are the same to the last bit; NaN is itself."""
    nothing = all(isinstance(value, float) and math.isnan(value) for value in (one, other))
    return nothing or (type(one) is type(other) and bool(one == other))


def close(found: Any, expected: Any) -> bool:
    """Whether two values are the same, numbers to rounding."""
    if exact(found, expected) or not (isinstance(found, float) and isinstance(expected, float)):
        return exact(found, expected)
    return math.isfinite(found) and abs(found - expected) <= max(RELATIVE * abs(expected), ABSOLUTE)
