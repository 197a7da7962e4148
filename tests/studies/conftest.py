"""What the tests of studies share: the study of the module at hand, run once, and its page."""

from __future__ import annotations

import pytest

from gradleak import claims, studies
from gradleak.book import pages
from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.studies.dang2021.transcripts import can_speak
from tests.conftest import shared_cache
from tests.studies import golden


@pytest.fixture(scope="module")
def record(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the module's STUDY with its CHOSEN parameters, as its page makes it.

    The trials run here, where their coverage is seen; the page then takes them from the cache, runs its own cells in a
    real kernel, and must come to the same record and show its verdicts. The smallest run gives the golden rows.
    """
    study = studies.load(request.module.STUDY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADLEAK_CACHE", str(shared_cache(tmp_path_factory)))
        ran = golden.run(study, golden.chosen(study))
        differences = golden.differences(study, golden.smallest(study))
        patch.delenv("GRADLEAK_WEIGHTS", raising=False)
        page = pages.run_page(study, golden.chosen(study), tmp_path_factory.mktemp(study.name), jobs=1)
    assert records.read(page.record).digest() == ran.digest()
    assert ran.profile == "custom"
    text = page.notebook.read_text()
    for line in claims.lines({study.name: ran}, study.name):
        assert line.fresh.verdict not in claims.DECIDED
    assert "Traceback" not in text
    assert "stderr" not in text, "a page prints nothing it does not mean to"
    if not can_speak():  # without espeak-ng, other speech stands in
        differences = [one for one in differences if '"part": "synthesised"' not in one]
    assert not differences, (
        f"{study.name} gives other rows than before; if it should, `make golden ARGS={study.name}` writes them anew:\n"
        + "\n".join(differences)
    )
    return ran
