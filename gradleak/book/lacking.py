"""What the papers' undecided claims lack, files or time, and the command that decides them once it is there.

The pages take the files already, and a claim prefers rows of the paper's setting to those of a stand-in.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from torch import nn

from gradleak import claims, data, models, paths
from gradleak.book import queue
from gradleak.claims import Line
from gradleak.claims.judging import enough
from gradleak.data import files
from gradleak.errors import GradleakError, first_line
from gradleak.models import ready
from gradleak.runs import records
from gradleak.show.tables import Table, duration

RECORD, RUN = "gradleak record", "gradleak run --profile paper"


@dataclass(frozen=True)
class Wanted:
    """Something that claims ask for and this book does not have.

    Attributes:
        study: The study whose page measures the claims.
        setting: The names in the claims' setting, with the values that they want.
        provide: The files to provide, and their source.
        values: The values of the page's parameters.
        added: Whether they are entries beside those of the record; else they need a run of their own.
        first: Whether the entries come before the others, because the page measures more with its last one.
    """

    study: str
    setting: Mapping[str, Any]
    provide: str
    values: Mapping[str, Any]
    added: bool = True
    first: bool = False

    @property
    def given(self) -> dict[str, Any]:
        """The values of the parameters with which the page measures the claims."""
        record = records.recorded(self.study)
        if not (self.added and record):
            return dict(self.values)
        present: Mapping[str, Any] = record.parameters
        others = {name: [one for one in present[name] if one not in own] for name, own in self.values.items()}
        return {name: own + others[name] if self.first else others[name] + own for name, own in self.values.items()}

    @property
    def command(self) -> str:
        """The command that decides the claims once the file is there."""
        verb = RECORD if self.added else RUN
        texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in self.given.items()}
        return " ".join([verb, self.study, *(f"-p {shlex.quote(f'{name}={text}')}" for name, text in texts.items())])

    def about(self, line: Line) -> bool:
        """Whether a claim lacks this and nothing else."""
        wanted = _wanted(line)
        met = (name in self.setting and enough(self.setting[name], value) for name, value in wanted.items())
        return line.claim.study == self.study and bool(wanted) and all(met)


def _imagenet(study: str, network: str, weights: str, *, first: bool = False, **more: str) -> Wanted:
    """Return what claims on a network that was trained on ImageNet want."""
    provide = (
        f"imagenet.npz in $GRADLEAK_DATA, with the validation images, and {ready.file_of(network)} in "
        f"$GRADLEAK_WEIGHTS, the state of torchvision's network with {weights}"
    )
    entry = {"dataset": "imagenet", "network": network, "activation": "", "classes": 1000} | more
    return Wanted(study, {"network": network, "dataset": "imagenet"}, provide, {"rows": [entry]}, first=first)


def _dataset(name: str, provide: str) -> Wanted:
    """Return what claims on a dataset of wainakh2021 want."""
    return Wanted("llg-attack", {"dataset": name}, provide, {"datasets": [name]})


# A trained network of wang2024. On its images of 224×224 pixels, a CPU takes most of an hour to train it for one epoch.
PUBLISHED = "flowers17/resnet18-cifar"
# The networks of Table 3 of yin2021, the most accurate first, and what Tables 2 to 4 and the figures want.
OF_YIN2021 = ["resnet50-moco", "resnet50-imagenet", "resnet18-imagenet"]
GRADINVERSION = {"network": OF_YIN2021[0], "dataset": "imagenet", "networks": OF_YIN2021, "steps": 20_000}
WANTED = [
    _imagenet("reveal-labels", "efficientnet-b0-imagenet", "its own weights", features="signed"),
    _imagenet("reveal-labels", "resnet50-imagenet", "its own weights", first=True, features="plain"),
    _imagenet("batch-restoration", "resnet50-moco", "those of MoCo V2 and its linear classifier"),
    Wanted(
        "label-accuracy",
        {"row": f"{PUBLISHED}/published"},
        f"{' and '.join(ready.WANG2024[PUBLISHED].values())} in $GRADLEAK_WEIGHTS, from the link in the paper's code",
        {"rows": [dict(zip(("dataset", "network"), PUBLISHED.split("/"), strict=True)) | {"stage": "published"}]},
    ),
    Wanted(
        "gradinversion",
        GRADINVERSION,
        "imagenet.npz in $GRADLEAK_DATA, with the validation images and a few thousand training images; "
        f"{', '.join(map(ready.file_of, OF_YIN2021))} in $GRADLEAK_WEIGHTS; a large GPU, by our estimate for two days",
        {"judge": OF_YIN2021[1], "baseline_network": OF_YIN2021[0], "seeds": 8, "singles": 256} | GRADINVERSION,
        added=False,
    ),
    _dataset("svhn", "svhn.npz in $GRADLEAK_DATA, or with a network torchvision's download"),
    _dataset("celeba", "celeba.npz in $GRADLEAK_DATA, faces at 197×197 with one of five colours of hair"),
]


def undecided(lines: Sequence[Line]) -> list[Line]:
    """Return the papers' claims that were not decided."""
    return [line for line in claims.of_papers(lines) if line.deciding.undecided]


@dataclass(frozen=True)
class Gap:
    """What some claims of a page lack.

    Attributes:
        what: What is lacking.
        page: The page.
        claims: The number of claims.
        provide: What decides them.
        command: The command that decides them then; "" if there is none.
    """

    what: str
    page: str
    claims: int
    provide: str
    command: str = ""


def gaps(lines: Sequence[Line]) -> Iterator[Gap]:
    """Yield what the papers' undecided claims lack."""
    left, entries = undecided(lines), queue.queue()
    waiting = {name for entry in entries for name in entry.decides}
    late = [line for line in left if line.claim.id in waiting or not line.recorded.differs]
    others = [line for line in left if line not in late]
    for page, count in Counter(line.claim.study for line in late).items():
        seconds = sum(entry.seconds or 0.0 for entry in entries if entry.study == page)
        time = f"{duration(seconds)} of one thread of a CPU" if seconds else "a time that is not known"
        yield Gap("time", page, count, time, f"{RECORD} --undecided")
    for wanted in WANTED:
        if own := [line for line in others if wanted.about(line)]:
            others = [line for line in others if line not in own]
            yield Gap(_in_words(wanted.setting, " and "), wanted.study, len(own), wanted.provide, wanted.command)
    for (lacking, page), count in Counter((_in_words(_wanted(line)), line.claim.study) for line in others).items():
        yield Gap(lacking, page, count, "a setting in which the page cannot be run")


def _wanted(line: Line) -> dict[str, Any]:
    setting = line.claim.setting
    return {name: setting[name] for name in line.recorded.differs} if isinstance(setting, dict) else {}


def _in_words(wanted: Mapping[str, Any], between: str = " or ") -> str:
    values = {name: one if isinstance(one, list) else [one] for name, one in wanted.items()}
    return ", ".join(f"{name} {between.join(map(str, one))}" for name, one in values.items())


def text(lines: Sequence[Line]) -> str:
    """Return the table of what undecided claims lack, what most of them lack first, and the commands, in Markdown."""
    found = sorted(gaps(lines), key=lambda gap: -gap.claims)
    cells = [(gap.what, gap.page, gap.claims, gap.provide) for gap in found]
    frame = pd.DataFrame(cells, columns=["lacking", "page", "claims", "what decides them"])
    caption = f"What the papers' {frame['claims'].sum()} undecided claims lack."
    commands = dict.fromkeys(gap.command for gap in found if gap.command)
    block = "\n".join(["gradleak data --check", *commands])
    return f"{Table(frame, caption, 'tab-scoreboard-lacking')._repr_markdown_()}\n\n```bash\n{block}\n```"


def check() -> list[dict[str, str]]:
    """Load every dataset and network that is there as a file, and return whether it can be used, or why not."""
    folder = paths.weights_folder()
    networks = [
        name
        for name in (*ready.READY, *ready.IMAGENET, *ready.TRANSFORMERS)
        if folder and (folder / ready.file_of(name)).is_file()
    ]
    parts = [(name, files.FILES[name].file, _images) for name in files.FILES if files.location(name)]
    parts += [(name, ready.file_of(name), _parameters) for name in networks]
    parts += [
        (name, file, partial(_published, labels))
        for name, linked in ready.WANG2024.items()
        for labels, file in linked.items()
        if folder and (folder / file).is_file()
    ]
    return [{"name": name, "file": file, "state": _tried(load, name)} for name, file, load in parts]


def _tried(load: Callable[[str], str], name: str) -> str:
    try:
        return load(name)
    except GradleakError as error:
        return f"cannot be used: {first_line(error)}"


def _images(name: str) -> str:
    train, test = (data.load(name, split) for split in ("train", "test"))
    shape = "×".join(map(str, test.images.shape[1:]))
    return f"good: {len(train.images):,} and {len(test.images):,} images, {shape}, {test.classes} classes"


def _parameters(name: str) -> str:
    return _counted(models.pretrained(name))


def _published(labels: str, name: str) -> str:
    return _counted(ready.published(name, labels))


def _counted(network: nn.Module) -> str:
    return f"good: {sum(value.numel() for value in network.parameters()):,} parameters"
