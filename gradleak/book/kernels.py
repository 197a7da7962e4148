"""Fork the processes of pages that run in parallel from one server that has already imported their modules.

For many pages the imports take longer than the work. Here a server process imports the modules once, and is forked for
each page. The server computes nothing, so a forked kernel starts in the same state as a new one.
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
# The modules that every page's kernel, and the process that runs the kernel, import.
IMPORTS = (
    "ipykernel.kernelapp", "IPython", "papermill", "nbformat", "pandas", "seaborn", "matplotlib.pyplot", "scipy",
    "skimage.metrics", "gradleak.claims", "gradleak.book.pages",
)  # fmt: skip

# The private object with which multiprocessing controls its fork server. Two operations here have no public interface:
# letting a forked process use the server that it was forked from, and closing the file descriptor that keeps the server
# alive. If a Python version changes these names, tests/book/test_kernels.py fails.
SERVER: Any = vars(forkserver)["_forkserver"]

# On other systems, a fork of a process that has loaded libraries may fail.
FORKS = sys.platform == "linux"


def server(modules: Sequence[str]) -> BaseContext:
    """Return a context whose processes start with these modules, and those that every page needs, already imported."""
    if not FORKS:
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTS, *modules])
    return context


def use() -> None:
    """Fork the kernels of this process from the server from which this process was forked."""
    if not FORKS:
        return
    from jupyter_client.provisioning.factory import KernelProvisionerFactory

    if forkserver.get_inherited_fds() is not None:
        # multiprocessing would start a second server here, although a forked process inherits access to the first one.
        SERVER.ensure_running = lambda: None
    factory = KernelProvisionerFactory.instance()
    place = f"{__name__}:{Forked.__name__}"
    factory.provisioners[NAME] = importlib.metadata.EntryPoint(NAME, place, factory.GROUP_NAME)
    factory.default_provisioner_name = NAME


class Forked(LocalProvisioner):
    """A provisioner that starts a local kernel as a fork of the server, instead of a new interpreter."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        """Start the kernel that the command line `cmd` describes."""
        connection = cmd[cmd.index("-f") + 1]
        process = multiprocessing.get_context("forkserver").Process(
            target=_kernel, args=(connection, kwargs.get("cwd"), dict(kwargs["env"]))
        )
        process.start()
        handle = _Handle(process)
        self.process, self.pid = cast(Any, handle), handle.pid
        return self.connection_info


class _Handle:
    """An adapter that gives a multiprocessing process the interface of subprocess.Popen, which jupyter_client uses."""

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
            # After its start, the kernel leads a process group.
            os.killpg(self.pid, number)
        except ProcessLookupError:
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def _kernel(connection: str, folder: str | None, environment: dict[str, str]) -> None:
    """Run a kernel in this process, with the session, folder and environment that a new process would have."""
    os.setsid()
    # The server lives as long as some process holds this descriptor. A kernel ends with its server, so it must not
    # hold the descriptor.
    os.close(SERVER._forkserver_alive_fd)
    os.environ.clear()
    os.environ.update(environment)
    if folder:
        os.chdir(folder)
    from ipykernel.kernelapp import IPKernelApp

    # With a parent handle, the kernel ends with the server and prints no greeting. The backend for figures is normally
    # chosen when matplotlib is imported. That has already happened here, so it is set explicitly.
    arguments = [f"--IPKernelApp.parent_handle={os.getppid()}", "--matplotlib=inline"]
    IPKernelApp.launch_instance(argv=["-f", connection, *arguments])
