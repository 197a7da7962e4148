"""A trial of every part of every page gives its golden rows on the pretended GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

import pytest

from gradleak import studies
from gradleak.images.matching import engine, optimizers
from tests.gpu.rows import parts, rows_on, trials
from tests.pretended import pretended_gpu
from tests.studies import golden

# On a GPU no attack waits for the line search of another, so that other attacks are in a batch together, and the host
# rarely reads how many pairs of L-BFGS are in use. Both change the order of sums, and twenty iterations amplify this to
# a tenth. For these pages each attack is compared with the CPU alone, and the host reads after every round.
ALONE = {"cnn-reconstruction", "feature-matching"}
# Levenberg-Marquardt takes its derivatives under vmap, which gives convolutions tensors without memory of their own.
# The pretended GPU cannot compute these; a real one can.
VMAPPED = [
    ("cnn-inversion", "polish"), ("cnn-reconstruction", "second order"), ("units", "a batch behind a defence"),
]  # fmt: skip
# Half a minute of training; "peeled" peels, and other pages train.
LONG = [("peeling", "trained")]


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Let matching run one attack at a time, and read its state after every round."""
    one_attack = mock.patch.object(engine, "_chunk", return_value=1)
    with one_attack, mock.patch.object(optimizers, "steps_a_read", return_value=1):
        yield


@pytest.mark.parametrize(("name", "part"), [one for one in parts() if one not in VMAPPED + LONG])
def test_rows_are_the_golden_ones(name: str, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Golden rows are made without weights that a machine may have, such as those of LPIPS.
    monkeypatch.delenv("GRADLEAK_WEIGHTS", raising=False)
    study, before = studies.load(name), trials(name)[part]
    with alone() if name in ALONE else contextlib.nullcontext():
        if name in ALONE:
            before = before.model_copy(update={"rows": rows_on("cpu", name, part)})
            before = before.model_copy(update={"rows": golden._kept(study, before)})
        with pretended_gpu() as gpu:
            again = before.model_copy(update={"rows": rows_on(gpu.device, name, part)})
    assert [one.text for one in golden._beyond(study, before, again)] == []
