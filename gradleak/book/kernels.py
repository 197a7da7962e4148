"""Start the kernels of pages as copies of one process that has loaded the large packages already.

Loading torch, torchvision, pandas and seaborn takes a page's kernel longer than most of its cells. Here
`multiprocessing`'s fork server loads them once for each process that runs pages, and every kernel is forked from it.
Otherwise it is an ordinary kernel: jupyter_client starts, asks and stops it through a provisioner, its public interface
for kernels that are processes of another kind.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo
from jupyter_client.provisioning.factory import KernelProvisionerFactory
from jupyter_client.provisioning.local_provisioner import LocalProvisioner

NAME, LAUNCHER = "gradleak-forked", "ipykernel_launcher"
# joblib is among them because its workers tell their children of a start method that it defines.
PACKAGES = ["torch", "torchvision", "pandas", "seaborn", "scipy.stats", "pydantic", "joblib", "ipykernel.kernelapp"]
FORKING = multiprocessing.get_context("forkserver" if sys.platform == "linux" else None)


def _be_kernel(words: list[str], environment: dict[str, str], folder: str) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    # This module came with the package of the process that runs pages; a page finds its package on its own path.
    for name in [name for name in sys.modules if name.partition(".")[0] == "gradleak"]:
        del sys.modules[name]
    sys.path[:0] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    from ipykernel.kernelapp import IPKernelApp

    # pyplot is loaded already, and does not read MPLBACKEND any more.
    IPKernelApp.launch_instance([*words, "--matplotlib=inline", f"--IPKernelApp.parent_handle={os.getppid()}"])


class ForkedKernel(FORKING.Process):  # type: ignore[name-defined, misc]
    """A kernel in a forked process, with the methods of `subprocess.Popen` that a provisioner uses."""

    stdin = stdout = stderr = None

    def poll(self) -> Any:
        """Return the exit status, None while the kernel runs."""
        return self.exitcode

    def wait(self) -> Any:
        """Wait for the end of the kernel and return its exit status."""
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal to the kernel."""
        os.kill(self.pid, number)


class Forked(LocalProvisioner):
    """Starts a kernel by forking if it runs this Python, and as usual if not."""

    process: Any

    async def launch_kernel(self, cmd: list[str], **options: Any) -> KernelConnectionInfo:
        """Start the kernel of a command such as `python -m ipykernel_launcher -f FILE`."""
        if sys.platform != "linux" or cmd[0] != sys.executable or LAUNCHER not in cmd:
            return await super().launch_kernel(cmd, **options)
        words = cmd[cmd.index(LAUNCHER) + 1 :]
        place = str(options.get("cwd") or Path.cwd())
        self.process = ForkedKernel(target=_be_kernel, args=(words, options["env"], place))
        self.process.start()
        self.pid = self.pgid = self.process.pid
        return self.connection_info


def fork() -> None:
    """Let all kernels that this process starts be forked."""
    FORKING.set_forkserver_preload(PACKAGES)
    factory = KernelProvisionerFactory.instance()
    factory.provisioners[NAME] = EntryPoint(NAME, f"{__name__}:{Forked.__name__}", factory.GROUP_NAME)
    factory.default_provisioner_name = NAME
