"""Start workers on Slurm: `python book/slurm.py 100`, then `gradleak record PAGE --cluster ADDRESS`.

`python book/slurm.py 8 gpu` starts eight workers with a GPU each. Without a number the script only prints the job.
It needs `pip install 'gradleak[cluster]'` on the cluster, in a folder that its machines share.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from dask_jobqueue import SLURMCluster

# Variables that name shared folders; each is passed on to the workers if it is set.
SHARED = ("PYTHONPATH", "GRADLEAK_DATA", "GRADLEAK_WEIGHTS", "GRADLEAK_CACHE")


def cluster(**options: Any) -> SLURMCluster:
    """Return a scheduler and the job of one worker, with one core and one thread. No job is submitted yet.

    Args:
        **options: What your site needs, such as `queue` and `account`; `interface` names the machines' network.
    """
    passed = [f"export {name}='{os.environ[name]}'" for name in SHARED if name in os.environ]
    asked = {"cores": 1, "processes": 1, "memory": "4GB", "walltime": "12:00:00"} | options
    prologue = ["export OMP_NUM_THREADS=1", *passed]
    return SLURMCluster(**asked, job_script_prologue=prologue, worker_extra_args=["--no-dashboard"])


# Slurm sets CUDA_VISIBLE_DEVICES to the GPU that it gives.
GPU = {"job_extra_directives": ["--gres=gpu:1"]}

if __name__ == "__main__":
    count, gpu = [word for word in sys.argv[1:] if word != "gpu"], "gpu" in sys.argv[1:]
    with cluster(**GPU if gpu else {}) as made:
        print(made.job_script())
        if count:
            made.scale(jobs=int(count[0]))
            print(f"gradleak record PAGE --cluster {made.scheduler_address}", flush=True)
            signal.pause()
