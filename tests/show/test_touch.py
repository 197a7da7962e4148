"""The data of interactive figures: what the record holds, as JSON that no text can break out of."""

from __future__ import annotations

import json
import re

from gradleak.runs import records
from gradleak.runs.records import Record
from gradleak.show.touch import InteractiveFigure
from gradleak.studies.dang2021 import sentences
from gradleak.studies.wang2024 import theorem1


def recorded(name: str) -> Record:
    record = records.recorded(name)
    assert record is not None
    return record


def data_of(figure: InteractiveFigure | None) -> dict[str, object]:
    assert figure is not None
    found = re.search(r'<script type="application/json">(.*?)</script>', figure._repr_html_(), re.DOTALL)
    assert found is not None
    data: dict[str, object] = json.loads(found[1])
    return data


def test_the_slider_holds_the_recorded_path() -> None:
    record = recorded("theorem1")
    case = record.rows(theorem1.OneInterval).iloc[0]
    data = data_of(theorem1.slider(record))
    assert {name: data[name] for name in ("logits", "ratios", "truth", "low", "high")} == {
        name: case[name] for name in ("logits", "ratios", "truth", "low", "high")
    }
    assert data["free"] == 1, "smoothing leaves one entry free"
    assert abs(float(str(data["first"]))) < abs(case["low"]) < abs(case["high"]) < abs(float(str(data["last"])))


def test_the_replay_ends_with_the_recorded_sentence() -> None:
    record = recorded("sentences")
    rows = record.rows(sentences.OneSentence)
    figure = sentences.replay(record)
    assert figure is not None
    steps = figure.data["steps"]
    assert [step["piece"] for step in steps] == list(rows["word"])
    assert steps[-1]["piece"] == ""
    assert steps[-1]["miss"] is None
    assert figure.data["sentence"] == "".join(rows["word"]).replace("▁", " ").strip()
    for step, nearest in zip(steps, rows["nearest"], strict=True):
        assert len(step["others"]) == len(nearest) - (step["miss"] is not None), "the word that is read is drawn once"
        assert step["miss"] is None or step["miss"] < figure.data["fits"]
        assert len(step["names"]) == 4
    assert min(steps[-1]["others"]) > figure.data["fits"], "no word lies in the span at the end"
    others = [trial for trial in record.trials if trial.inputs["part"] != "figure"]
    assert sentences.replay(record.model_copy(update={"trials": others})) is None


def test_no_text_ends_the_data_or_the_markup() -> None:
    evil = "</script><b>"
    figure = InteractiveFigure("reading-replay", {"sentence": evil}, title='a "b"', says="<i>", instead="&")
    text = figure._repr_html_()
    assert text.count("</script>") == 1
    assert "<b>" not in text
    assert "<i>" not in text
    assert 'aria-label="a &quot;b&quot;"' in text
    assert data_of(figure)["sentence"] == evil
