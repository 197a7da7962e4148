"""The recipe for Slurm: the job that it would submit, and that it submits none unasked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

RECIPE = Path(__file__).parents[2] / "book" / "slurm.py"


def test_the_job_is_a_worker_of_one_core_and_may_have_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRADLEAK")}
    environment["GRADLEAK_DATA"] = "/shared/data sets"
    # Without a number nothing is submitted, and this needs no Slurm.
    job, with_gpu = (
        subprocess.run(
            [sys.executable, str(RECIPE), *words], env=environment, cwd=tmp_path, capture_output=True, text=True,
            check=True,
        ).stdout
        for words in ([], ["gpu"])
    )  # fmt: skip
    assert {
        "#SBATCH -n 1", "#SBATCH --cpus-per-task=1", "export OMP_NUM_THREADS=1",
        "export GRADLEAK_DATA='/shared/data sets'",
    } <= set(job.splitlines())  # fmt: skip
    assert "--nthreads 1 " in job
    assert not [word for word in ("--gres", "GRADLEAK_CACHE", "--cluster") if word in job]
    assert "#SBATCH --gres=gpu:1" in with_gpu.splitlines()
