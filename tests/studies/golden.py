"""Compare the rows of each page's smallest run with its golden rows, or write these anew.

`python -m tests.studies.golden [page …]`, or `make golden`, runs the pages and writes tests/golden/<page>.json. Rows
that agree with the golden ones within the tolerance of their columns keep their old numbers, so a file changes only
where the results do.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest import mock

from tests import conftest  # isort: skip  # chooses the kernels before torch is loaded
from gradleak import data, studies
from gradleak.runs import comparing, golden, runner
from gradleak.runs.comparing import Difference
from gradleak.runs.plain import Columns, restored, worded
from gradleak.runs.records import Record, Trial
from gradleak.runs.trials import without_device
from gradleak.storage import write_whole
from gradleak.studies import Parameters, Study

assert conftest.KERNELS.keys() <= os.environ.keys()


def chosen(study: Study) -> Parameters:
    """Return the smallest parameters of a page, which its test states in CHOSEN, on the CPU."""
    return studies.parameters(study, "quick", _test_of(study).CHOSEN | {"device": "cpu"})


def widened(study: Study) -> Parameters:
    """Return these parameters, widened so that the run has all parts and takes all branches.

    The page's test states in MORE what golden rows hold besides. In ALSO it states parameters for parts that read a
    dataset which this package does not bring, by the name of the dataset; they count where the dataset is at hand.
    """
    test, absent = _test_of(study), missing()
    changes = test.CHOSEN | getattr(test, "MORE", {})
    for dataset, values in getattr(test, "ALSO", {}).items():
        changes |= values if dataset not in absent else {}
    return studies.parameters(study, "quick", changes | {"device": "cpu"})


def _test_of(study: Study) -> Any:
    return importlib.import_module(f"tests.studies.{study.paper}.test_{study.name.replace('-', '_')}")


def missing() -> set[str]:
    """Return the datasets that are not at hand."""
    return {state.name for state in data.states() if state.state in ("missing", "damaged")}


def smallest(study: Study) -> Record:
    """Run a page as its golden rows were made."""
    return run(study, widened(study))


def run(study: Study, parameters: Parameters) -> Record:
    """Run a page without weights that a machine may have, such as those of LPIPS."""
    with mock.patch.dict(os.environ):
        os.environ.pop("GRADLEAK_WEIGHTS", None)
        return runner.run_study(study, parameters, jobs=1)


def stored(study: Study) -> list[Trial]:
    """Return the golden trials of a page; none if it has no file yet."""
    file = golden.file_of(study.name)
    lines = json.loads(file.read_text("utf-8")) if file.is_file() else []
    return [Trial(inputs=one["inputs"], rows=one["rows"], seconds=0.0) for one in restored(lines)]


def differences(study: Study, found: Record) -> list[str]:
    """Return how a run differs from the golden rows beyond the tolerance of the columns, one line each."""
    before = {without_device(trial.inputs): trial for trial in stored(study)}
    after = {without_device(trial.inputs): trial for trial in found.trials}
    lines = [f"a trial is new: {inputs[:200]}" for inputs in after.keys() - before.keys()]
    absent = missing()
    unread = {key for key, trial in before.items() if absent.intersection(study.experiment(trial.inputs).reads())}
    lines += [f"a trial is gone: {inputs[:200]}" for inputs in before.keys() - after.keys() - unread]
    beyond = [one for key in before.keys() & after.keys() for one in _beyond(study, before[key], after[key])]
    return lines + [one.text for one in comparing.worst(beyond)]


def _beyond(study: Study, before: Trial, after: Trial) -> Iterator[Difference]:
    after = after.model_copy(update={"rows": _kept(study, after)})
    yield from (one for one in comparing.compare(study, before, after) if one.outcome == "differs")


def _kept(study: Study, trial: Trial) -> list[Columns]:
    """Return a trial's rows without times, and without the content of pictures."""
    return [
        {name: _brief(value) for name, value in row.items() if not comparing.tells_time(study, name)}
        for row in trial.rows
    ]


def _brief(value: Any) -> Any:
    # Pictures repeat what the numbers of a row say, and a JPEG's bytes differ where pixels differ by rounding.
    return "a picture" if is_picture(value) else value


def is_picture(value: Any) -> bool:
    """Whether a value is a picture, which is recorded as the text of a JPEG file in base64."""
    return isinstance(value, str) and value.startswith("/9j/")


def write(study: Study, found: Record) -> bool:
    """Write the golden rows of a page; return whether the file changed."""
    before = {without_device(trial.inputs): trial for trial in stored(study)}
    trials = []
    for trial in found.trials:
        old = before.get(without_device(trial.inputs))
        same = old is not None and not list(_beyond(study, old, trial))
        rows = old.rows if old is not None and same else _kept(study, trial)
        lines = ",\n   ".join(json.dumps(row, ensure_ascii=False) for row in worded(rows))
        trials.append(f' {{"inputs": {json.dumps(worded(trial.inputs))}, "rows": [\n   {lines}\n  ]}}')
    text = "[\n" + ",\n".join(trials) + "\n]\n"
    file = golden.file_of(study.name)
    if file.is_file() and file.read_text("utf-8") == text:
        return False
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, lambda stream: stream.write(text.encode()))
    return True


def main() -> None:
    """Write the golden rows of pages."""
    parser = argparse.ArgumentParser(description="Write the golden rows of pages anew, where they have changed.")
    parser.add_argument("page", nargs="*", help="pages; default: all")
    # The user's cache holds networks that were trained with the kernels of this machine's processor.
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, GRADLEAK_CACHE=folder):
        for name in parser.parse_args().page or studies.names():
            study = studies.load(name)
            print(f"{name}: {'written' if write(study, smallest(study)) else 'unchanged'}", flush=True)


if __name__ == "__main__":
    main()
