"""Claims files: tables, lists and single claims become claims, and mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gradleak import claims
from gradleak.claims.entries import expanded
from gradleak.claims.model import Rule, Within
from gradleak.errors import InputError

TABLE = """
- id: t
  method: own
  setting: {dataset: cifar10}
  table: Images restored
  place: Table 3
  statement: "{column}, {group}, label from {row}"
  columns:
    PSNR: {measure: {column: psnr, reduce: mean}, rule: {within: 1.5}, better: higher}
    LPIPS: {measure: {column: lpips, reduce: mean}, rule: {at_most: published}, needs: {weights: vgg}}
  rows:
    mixup: {where: {labels: mixup}, needs: {pairs: 45}, by: run, rows: {GT: [1, 2], DLG: [3, ~]}}
    whole: {where: {labels: smoothing, run: GT}, cells: [4, {published: 5, rule: {between: [1, 2]}, note: of a cell}]}
"""


def read(text: str) -> list[claims.Claim]:
    plain = {"study": "toy", "paper": "p"}
    return [claims.Claim.model_validate(plain | entry) for entry in expanded(yaml.safe_load(text))]


def test_a_table_is_its_cells() -> None:
    cells = {claim.id: claim for claim in read(TABLE)}
    assert list(cells) == ["t-mixup-gt-psnr", "t-mixup-gt-lpips", "t-mixup-dlg-psnr", "t-whole-psnr", "t-whole-lpips"]
    first, second, _, _, special = cells.values()
    assert (first.published, first.better, first.needs) == (1, "higher", {"pairs": 45})
    assert (first.statement, first.rule) == ("PSNR, mixup, label from GT", Rule(within=Within(absolute=1.5)))
    assert first.measure.where == {"labels": "mixup", "run": "GT"}
    assert (second.rule, second.needs) == (Rule(at_most=2), {"pairs": 45, "weights": "vgg"})
    assert (special.group, special.rule.between, special.note) == ("", (1, 2), "of a cell")


def test_study_and_paper_follow_from_the_files_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "file_of", lambda study: tmp_path / "toy.yaml")
    (tmp_path / "toy.yaml").write_text(TABLE)
    assert {(claim.study, claim.paper) for claim in claims.load("toy")} == {("toy", tmp_path.name)}
    cells = claims.published("toy", "psnr", ("labels", "run"))
    assert cells == {("mixup", "GT"): 1, ("mixup", "DLG"): 3, ("smoothing", "GT"): 4}
    assert claims.published("toy", "psnr", ("labels", "dataset")) == {}


GOOD = """
- id: one
  paper: p
  place: Table 1
  statement: s
  study: toy
  measure: {column: value, reduce: mean}
  rule: {at_most: 1}
  setting: any
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GOOD + "  colour: red\n", r"toy.yaml, claim 'one': colour: Extra inputs"),
        (GOOD.replace("{at_most: 1}", "{at_most: 1, at_least: 0}"), "exactly one of"),
        (GOOD.replace("{at_most: 1}", "{within: {absolute: 1}}"), "there is none"),
        (GOOD + GOOD, "claim 'one' occurs twice"),
        (TABLE.replace("[1, 2]", "[1, 2, 3]"), r"toy.yaml, table 't', row 'GT': expected a list of 2 cells"),
        (TABLE.replace("id: t", "name: t"), "is no claim, list or table: KeyError..id"),
        (TABLE.replace("{row}", "{line}"), "is no claim, list or table: KeyError..line"),
        ("a: [", "is not YAML"),
        ("- 5", "5 is no claim, list or table"),
    ],
)
def test_mistakes_in_a_claims_file_are_one_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "file_of", lambda study: tmp_path / "toy.yaml")
    (tmp_path / "toy.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        claims.load("toy")
    assert "\n" not in str(caught.value)
    (tmp_path / "toy.yaml").unlink()
    with pytest.raises(InputError, match=r"study 'toy' has no claims: expected claims/.*/toy.yaml"):
        claims.load("toy")
