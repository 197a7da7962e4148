"""A study's trials on a cluster of one worker, and of two: `make bench` measures it, the page on clusters shows it."""

from __future__ import annotations

import time
from typing import Any

from gradleak import studies
from gradleak.runs import runner

STUDY, WORKERS = "theorem1", (1, 2)
# As many samples as give a trial half a second or so, so that handing it out is little beside it.
SIZES = {"samples": 6000, "images": 100}


def scaled() -> list[dict[str, Any]]:
    """Return a row a number of workers: seconds until all trials were back, and the sum of the trials' own seconds."""
    from distributed import LocalCluster

    study = studies.load(STUDY)
    parameters = studies.parameters(study, "quick", SIZES)
    inputs = list(study.trials(parameters))
    rows = []
    for workers in WORKERS:
        with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
            address = cluster.scheduler_address
            # What workers import and draw once is not what more of them save.
            for _ in runner.run_trials([(study, inputs[0])] * workers, cluster=address):
                pass
            started = time.perf_counter()
            trials = [trial for _, trial in runner.run_trials([(study, one) for one in inputs], cluster=address)]
            taken = time.perf_counter() - started
        own = sum(trial.seconds for trial in trials)
        rows.append({"workers": workers, "trials": len(trials), "seconds": taken, "in trials": own})
        print(f"{STUDY} on {workers} workers: {taken:.1f} s, {own:.1f} s in {len(trials)} trials", flush=True)
    return rows
