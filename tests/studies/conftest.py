"""What the tests of studies share: the study of the module at hand, run once."""

from __future__ import annotations

import pytest

from gradleak import studies
from gradleak.book import runner
from gradleak.book.records import Record


@pytest.fixture(scope="module")
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the module's STUDY with its CHOSEN parameters."""
    study = studies.load(request.module.STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADLEAK_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return runner.run_study(study, studies.parameters(study, "quick", request.module.CHOSEN), jobs=1)
