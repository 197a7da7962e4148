"""The recipe for Slurm: the job that it would submit, and that it submits none unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "book" / "slurm.py"


def test_a_job_may_ask_for_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(RECIPE), "gpu"]
    script = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "#SBATCH --gres=gpu:1" in script.splitlines()
    assert "--cluster" not in script, "without a number none is submitted"


def test_the_job_is_a_worker_of_one_core_and_one_thread(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment["GRADLEAK_DATA"] = "/shared/data sets"
    command = [sys.executable, str(RECIPE)]
    # A look at the job needs no Slurm: nothing is submitted, and nothing is waited for.
    script = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    for line in (
        "#SBATCH -n 1",
        "#SBATCH --cpus-per-task=1",
        "#SBATCH --mem=4G",
        "#SBATCH -t 12:00:00",
        "export OMP_NUM_THREADS=1",
        "export GRADLEAK_DATA='/shared/data sets'",
    ):
        assert line in script.splitlines()
    worker = next(line for line in script.splitlines() if "dask_worker" in line)
    assert worker.startswith(sys.executable)
    assert "--nthreads 1 " in worker
    assert "--no-dashboard" in worker
    assert "--gres" not in script
    assert "GRADLEAK_CACHE" not in script
    assert "--cluster" not in script
