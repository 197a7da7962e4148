"""What a client sends that trains with differential privacy by Opacus: needs `gradleak[opacus]`."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradleak.leak import Leak

DELTA = 1e-5


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Leave unsaid that noise of a seed is no secret noise, and that a batch is drawn again where it is empty."""
    loader = logging.getLogger("opacus.data_loader")
    before, loader.disabled = loader.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        loader.disabled = before


@dataclass(frozen=True)
class PrivateUpdate:
    """A client's update under DP-SGD: its `leak`, the samples that were `drawn` into its batch, and its ε.

    `noise`: the standard deviation on every entry of the gradient, which is public, as the clipping norm is.
    """

    leak: Leak
    drawn: Tensor
    epsilon: float
    noise: float

    @property
    def defense(self) -> str:
        """What `gradleak.audit_update` is told of it."""
        return f"dp-sgd/{self.noise:g}"


def private_update(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    batch_size: int,
    noise_multiplier: float,
    max_grad_norm: float = 1.0,
    rate: float = 1.0,
    delta: float = DELTA,
    seed: int = 0,
) -> PrivateUpdate:
    """Let Opacus take one step of DP-SGD on a client's samples, and return what the server receives.

    The batch is drawn by Poisson sampling, `batch_size` samples on average, and once more where none is drawn: the
    server is told how many. Every sample's gradient is clipped to `max_grad_norm`, and noise of `noise_multiplier`
    times that is added to their sum. `epsilon` is that of the one step at `delta`, by Opacus' accountant.
    """
    client = copy.deepcopy(model).train()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    samples = TensorDataset(inputs, targets, torch.arange(len(inputs)))
    with _quiet():
        engine = PrivacyEngine(accountant="rdp")
        private, optimiser, loader = engine.make_private(
            module=client,
            optimizer=torch.optim.SGD(client.parameters(), lr=rate),
            data_loader=DataLoader(samples, batch_size=batch_size, generator=generator),
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            noise_generator=torch.Generator().manual_seed(seed + 1),
        )
        drawn = torch.zeros(0, dtype=torch.long)
        while len(drawn) == 0:
            some, wanted, drawn = next(iter(loader))
        F.cross_entropy(private(some), wanted).backward()
        optimiser.step()
        epsilon = float(engine.get_epsilon(delta))
    leak = Leak.from_update(
        model, before, client.state_dict(), rate=rate, batch_size=len(drawn), input_shape=tuple(inputs.shape[1:])
    )
    return PrivateUpdate(leak, drawn, epsilon, noise_multiplier * max_grad_norm / batch_size)
