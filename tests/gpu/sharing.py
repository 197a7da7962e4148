"""Share calls out to worker processes, and survive a worker that crashes."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

import torch

from gradleak.book import PATIENCE

A = TypeVar("A")
R = TypeVar("R")


def shared(
    call: Callable[[A], R],
    arguments: Sequence[A],
    jobs: int,
    crashed: Callable[[A, str], R],
    spoiled: Callable[[R], bool],
) -> Iterator[R]:
    """Call a function for each argument in `jobs` spawned processes, and yield the results.

    They come in the order in which the calls finish. Each process has one torch thread.

    Args:
        call: A function of a module, which the processes import.
        arguments: The arguments, in the order in which they are handed out.
        jobs: The number of processes.
        crashed: Gives the result for an argument at which its process ended, from a description of the end.
        spoiled: Whether a process must not be used again after a result.
    """
    waiting = deque(arguments)
    workers = [_Worker(call) for _ in range(min(jobs, len(waiting)))]
    try:
        for worker in workers:
            worker.give(waiting.popleft())
        while busy := [worker for worker in workers if worker.tasks]:
            ready = wait([worker.pipe for worker in busy])
            for worker in [one for one in busy if one.pipe in ready]:
                argument = worker.tasks.pop()
                try:
                    result = worker.pipe.recv()
                    again = not spoiled(result)
                except (EOFError, ConnectionError):
                    result, again = crashed(argument, worker.end()), False
                if waiting:
                    if not again:
                        workers.remove(worker)
                        worker.stop()
                        workers.append(worker := _Worker(call))
                    worker.give(waiting.popleft())
                yield result
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process and the argument on which it works, if any."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, its = spawn.Pipe()
        self.tasks: list[Any] = []
        self.process = spawn.Process(target=_work, args=(its, call), daemon=True)
        self.process.start()
        its.close()

    def give(self, argument: Any) -> None:
        self.tasks.append(argument)
        try:
            self.pipe.send(argument)
        except ConnectionError:
            return  # the process ended while it started; reading from its pipe says so

    def end(self) -> str:
        """Describe how the process ended."""
        self.process.join(timeout=PATIENCE)
        return f"the process ended with exit code {self.process.exitcode}"

    def stop(self) -> None:
        self.pipe.close()
        self.process.terminate()
        self.process.join(timeout=PATIENCE)


def _work(pipe: Connection, call: Callable[[Any], Any]) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            argument = pipe.recv()
        except EOFError:
            return
        pipe.send(call(argument))
