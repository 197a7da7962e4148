"""A study on a real cluster of two worker processes: the record is the same as without, one of them killed or not."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

RUN = """
import os, signal, sys, threading, time
from pathlib import Path

def kill(cluster, cache):
    while not list(Path(cache).rglob("*.json")):
        time.sleep(0.05)
    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)

def main():
    from distributed import LocalCluster
    from gradleak import studies
    from gradleak.book import runner
    study = studies.load("theorem1")
    parameters = studies.parameters(study, "quick", study.module.SMALLEST)
    folder = sys.argv[1]
    digests = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        for name, killing in (("whole", False), ("killed", True)):
            os.environ["GRADLEAK_CACHE"] = f"{folder}/{name}"
            if killing:
                threading.Thread(target=kill, args=(cluster, f"{folder}/{name}"), daemon=True).start()
            digests.append(runner.run_study(study, parameters, cluster=cluster.scheduler_address).digest())
    os.environ["GRADLEAK_CACHE"] = f"{folder}/alone"
    digests.append(runner.run_study(study, parameters, jobs=1).digest())
    Path(folder, "digests").write_text(" ".join(digests))

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
@pytest.mark.skipif(find_spec("distributed") is None, reason="distributed is not installed: gradleak[cluster]")
def test_a_cluster_gives_the_same_record_when_a_worker_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    # Workers that end say so in warnings of their own.
    command = [sys.executable, "-W", "ignore", str(script), str(tmp_path)]
    result = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, check=False, timeout=400)
    assert result.returncode == 0, result.stderr[-2000:]
    whole, killed, alone = (tmp_path / "digests").read_text().split()
    assert whole == alone
    assert killed == alone
