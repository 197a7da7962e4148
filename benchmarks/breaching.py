"""Run breaching's default on the clients of the page on budgets, and print its rows as JSON, one a line.

It needs breaching (commit 8bd99d5), omegaconf and hydra-core on the path, CIFAR-10 in $GRADLEAK_DATA, networks and the
trunk of LPIPS in $GRADLEAK_WEIGHTS, and OMP_NUM_THREADS=1: `PYTHONPATH=.:…/breaching python -P benchmarks/breaching.py`
(-P, because this file has the package's name). The rows are kept in gradleak/studies/wang2024/breaching.json: the mean
PSNR (dB) and LPIPS of each batch in the best order, and the CPU time (s).
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradleak import data
from gradleak.data.base import NORMALISATION
from gradleak.studies.wang2024.budget import PLAIN, Cell, Parameters, breaching, measured, network, ordered


def attacked(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, seed: int) -> tuple[Tensor, float]:
    """Return the images that breaching restores, and its CPU time (s)."""
    from breaching import attacks, get_attack_config

    with contextlib.redirect_stdout(io.StringIO()):
        config = get_attack_config("invertinggradients", [f"optim.max_iterations={steps}"])
    loss = nn.CrossEntropyLoss()
    parameters = list(model.eval().requires_grad_().parameters())
    gradients = torch.autograd.grad(loss(model(inputs), labels), parameters)
    mean, std = (list(values) for values in NORMALISATION)
    public = SimpleNamespace(shape=tuple(inputs.shape[1:]), mean=mean, std=std, modality="vision")
    sent = {"parameters": [one.detach() for one in parameters], "buffers": list(model.buffers()), "metadata": public}
    client = {"num_data_points": len(inputs), "labels": labels, "local_hyperparams": None}
    seen = {"gradients": list(gradients), "buffers": None, "metadata": client}
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker = attacks.prepare_attack(model, loss, config, setup)
    torch.manual_seed(seed)
    begun = time.process_time()
    with sdpa_kernel(SDPBackend.MATH):
        found = attacker.reconstruct([sent], [seen], {})[0]["data"].detach()
    return found, time.process_time() - begun


def main() -> None:
    """Attack every undefended setting with images in colour that has no rows yet."""
    torch.set_num_threads(1)
    paper = Parameters.at("paper")
    done = {tuple(row[name] for name in PLAIN) for row in breaching()["rows"]}
    for cell in (Cell(**one) for one in paper["cells"]):
        if (cell.defense, cell.labels) != ("none", "onehot"):
            continue
        setting = dict(
            zip(PLAIN, (cell.network, cell.data or paper["data"], cell.side, cell.size, cell.steps), strict=True)
        )
        if tuple(setting.values()) in done or data.shape(setting["data"])[0] != 3:
            continue
        test = data.load(setting["data"], "test", size=cell.side)
        model = network(cell.network, test)
        for number in range(cell.batches):
            own = slice(number * cell.size, (number + 1) * cell.size)
            truth, labels = test.images[own], test.labels[own]
            found, seconds = attacked(model, data.normalise(truth), labels, cell.steps, number)
            row = measured(ordered(found, truth), truth) | {"seconds": seconds}
            row = {name: None if value is None else round(value, 3) for name, value in row.items()}
            print(json.dumps(setting | {"batch": number} | row), flush=True)


if __name__ == "__main__":
    main()
