"""Calls shared out to processes: every one has its result, though a process crashes."""

from __future__ import annotations

import os

import torch

from tests.gpu.sharing import shared


def called(number: int) -> tuple[int, int, int]:
    """Return a number with the process that was given it and that process's threads; 13 ends the process."""
    if number == 13:
        os._exit(7)
    return number, os.getpid(), torch.get_num_threads()


def crashed(number: int, end: str) -> tuple[int, int, int]:
    assert end == "the process ended with exit code 7"
    return number, 0, 1


def test_a_crash_costs_one_result() -> None:
    numbers = [1, 13, 2, 3, 13, 4]
    found = list(shared(called, numbers, 2, crashed, lambda result: False))
    assert sorted(number for number, *_ in found) == sorted(numbers)
    assert [number for number, process, _ in found if not process] == [13, 13]
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for *_, threads in found} == {1}


def test_a_process_that_is_spoiled_is_not_used_again() -> None:
    found = list(shared(called, [1, 2, 3], 1, crashed, lambda result: result[0] == 1))
    processes = [process for _, process, _ in found]
    assert processes[0] != processes[1] == processes[2]
