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

from gradleak import data, models
from gradleak.data.base import NORMALISATION
from gradleak.studies.wang2024.budget import NETWORK_SEED, Cell, Parameters, measured, ordered


def attacked(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int, seed: int) -> tuple[Tensor, float]:
    """Return the images that breaching restores, and its CPU time (s)."""
    import breaching

    with contextlib.redirect_stdout(io.StringIO()):
        config = breaching.get_attack_config("invertinggradients", [f"optim.max_iterations={steps}"])
    loss = nn.CrossEntropyLoss()
    parameters = list(model.eval().requires_grad_().parameters())
    gradients = torch.autograd.grad(loss(model(inputs), labels), parameters)
    mean, std = (list(values) for values in NORMALISATION)
    public = SimpleNamespace(shape=tuple(inputs.shape[1:]), mean=mean, std=std, modality="vision")
    sent = {"parameters": [one.detach() for one in parameters], "buffers": list(model.buffers()), "metadata": public}
    client = {"num_data_points": len(inputs), "labels": labels, "local_hyperparams": None}
    seen = {"gradients": list(gradients), "buffers": None, "metadata": client}
    setup = {"dtype": torch.float, "device": torch.device("cpu")}
    attacker = breaching.attacks.prepare_attack(model, loss, config, setup)
    torch.manual_seed(seed)
    begun = time.process_time()
    with sdpa_kernel(SDPBackend.MATH):
        found = attacker.reconstruct([sent], [seen], {})[0]["data"].detach()
    return found, time.process_time() - begun


def main() -> None:
    """Attack every undefended setting of the page."""
    torch.set_num_threads(1)
    test = data.load("cifar10", "test")
    for cell in (Cell(**one) for one in Parameters.at("paper")["cells"]):
        if (cell.defense, cell.labels) != ("none", "onehot"):
            continue
        trained = cell.network.startswith("cifar10")
        model = models.pretrained(cell.network) if trained else models.build(cell.network, seed=NETWORK_SEED)
        for number in range(cell.batches):
            own = slice(number * cell.size, (number + 1) * cell.size)
            truth, labels = test.images[own], test.labels[own]
            found, seconds = attacked(model, data.normalise(truth), labels, cell.steps, number)
            row = {"network": cell.network, "size": cell.size, "steps": cell.steps, "batch": number}
            numbers = measured(ordered(found, truth), truth) | {"seconds": seconds}
            print(json.dumps(row | {name: round(value, 3) for name, value in numbers.items()}), flush=True)


if __name__ == "__main__":
    main()
