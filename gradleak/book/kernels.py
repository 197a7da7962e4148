"""Processes for pages that run side by side, all copied from one that has imported what every page needs.

A page's imports cost more than many a page's work. Here a server process imports them once and forks: it computes
nothing itself, so that a forked kernel starts from the same state as a fresh one.
"""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import signal
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from typing import Any, cast

from jupyter_client.provisioning.local_provisioner import LocalProvisioner

NAME = "gradleak-forked"
# What a kernel and the process that runs it need, whatever the page.
IMPORTS = (
    "ipykernel.kernelapp", "IPython", "papermill", "nbformat", "pandas", "seaborn", "matplotlib.pyplot", "scipy",
    "skimage.metrics", "gradleak.claims", "gradleak.book.pages",
)  # fmt: skip

# What multiprocessing knows in a process of the server that forks. It has no public way to do two things that are
# needed here: to let a process that was forked from the server use that same server, and to close what tells the server
# that somebody still needs it. If a Python version changes these names, tests/book/test_kernels.py fails.
SERVER: Any = vars(forkserver)["_forkserver"]

# Elsewhere a copy of a process in which libraries are loaded may not work.
FORKS = sys.platform == "linux"


def server(modules: Sequence[str]) -> BaseContext:
    """Return the context whose processes have imported these modules, and what every page needs, when they start."""
    if not FORKS:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTS, *modules])
    return context


def use() -> None:
    """Let the kernels that this process starts be forked from the server that it was itself forked from."""
    if not FORKS:
        return
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    if forkserver.get_inherited_fds() is not None:
        # multiprocessing means a forked process to use the server that it comes from, and starts another one.
        SERVER.ensure_running = lambda: None
    factory = KernelProvisionerFactory.instance()
    place = f"{__name__}:{Forked.__name__}"
    factory.provisioners[NAME] = importlib.metadata.EntryPoint(NAME, place, factory.GROUP_NAME)
    factory.default_provisioner_name = NAME


class Forked(LocalProvisioner):
    """Starts a local kernel as a copy of the server's process, and not as a new interpreter."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel that a command line would start."""
        connection = cmd[cmd.index("-f") + 1]
        process = multiprocessing.get_context("forkserver").Process(
            target=_kernel, args=(connection, kwargs.get("cwd"), dict(kwargs["env"]))
        )
        process.start()
        handle = _Handle(process)
        self.process, self.pid = cast(Any, handle), handle.pid
        return self.connection_info


class _Handle:
    """A process of multiprocessing under the names of subprocess.Popen, which jupyter_client asks for."""

    stdin = stdout = stderr = None

    def __init__(self, process: Any) -> None:
        self.process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        code: int | None = self.process.exitcode
        return code

    def wait(self) -> int | None:
        self.process.join()
        return self.poll()

    def send_signal(self, number: int) -> None:
        try:
            # The kernel leads a group of its own, once it has come that far.
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _kernel(connection: str, folder: str | None, environment: dict[str, str]) -> None:
    """Be a kernel: in a session, a folder and an environment as if the command had been started."""
    os.setsid()
    # A server lives as long as one whom it serves holds this; a kernel, which ends with its server, must not be one.
    os.close(SERVER._forkserver_alive_fd)
    os.environ.clear()
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    from ipykernel.kernelapp import IPKernelApp

    # It ends with its parent, which is the server; told of none, it would greet whoever started it by hand. And a new
    # interpreter learns where figures go when it imports matplotlib, which is imported here already.
    told = [f"--IPKernelApp.parent_handle={os.getppid()}", "--matplotlib=inline"]
    IPKernelApp.launch_instance(argv=["-f", connection, *told])
