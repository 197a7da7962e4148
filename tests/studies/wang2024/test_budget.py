"""The page on budgets: what is compared, and on which images."""

from __future__ import annotations

import pytest

from gradleak.runs.records import Record
from gradleak.show.aggregate import select
from gradleak.studies.wang2024 import budget

STUDY = "budget"
CHOSEN = budget.Parameters.at("smallest") | {"batches": 2}


def test_every_run_attacks_every_batch_and_breaching_only_its_own_clients(record: Record) -> None:
    rows = record.rows(budget.Matched)
    plain, pruned = select(rows, defense="none"), select(rows, defense="prune/0.9")
    assert plain["run"].value_counts()[budget.OURS] == 2
    assert budget.PUBLISHED not in set(pruned["run"])
    assert budget.BREACHING not in set(rows["run"])
    ours = select(plain, run=budget.OURS)
    assert ours["agreement"].notna().all()
    gain = select(plain, run=f"{budget.OURS} against {budget.PUBLISHED}")["difference"]
    means = plain.groupby("run")["psnr"].mean()
    assert float(gain.iloc[0]) == pytest.approx(means[budget.OURS] - means[budget.PUBLISHED])
    assert len(budget.table(record)) == 2


def test_breaching_was_run_on_settings_of_this_page() -> None:
    runs = [(row["network"], row["size"], row["steps"]) for row in budget.breaching()["rows"]]
    settings = [budget.Cell(**cell) for cell in budget.Parameters.at("paper")["cells"]]
    assert all(runs.count((cell.network, cell.size, cell.steps)) == 8 for cell in settings if cell.defense == "none")
