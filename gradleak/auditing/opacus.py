"""Compute the update of a client that trains with differential privacy by Opacus; needs `gradleak[opacus]`."""

from __future__ import annotations

import copy
import logging
import warnings
from dataclasses import dataclass

import torch
from opacus import PrivacyEngine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from gradleak.leak import Leak

DELTA = 1e-5


# An empty batch that was drawn is no news.
logging.getLogger("opacus.data_loader").setLevel(logging.ERROR)


@dataclass(frozen=True)
class PrivateUpdate:
    """A client's update under DP-SGD.

    Attributes:
        leak: The update.
        drawn: The indices of the samples in the batch.
        epsilon: The privacy loss ε of the step.
        noise: The standard deviation of the noise on every entry of the gradient. Like the clipping norm it is public.
    """

    leak: Leak
    drawn: Tensor
    epsilon: float
    noise: float

    @property
    def defense(self) -> str:
        """The `defense` argument of `gradleak.audit_update` for this update."""
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
    """Take one step of DP-SGD on a client's samples with Opacus, and return what the server receives.

    The batch is drawn by Poisson sampling, and drawn again if it is empty. The server knows its size.

    Args:
        model: The client's network.
        inputs: The client's samples (N, …).
        targets: Their classes (N,).
        batch_size: The expected size of the batch.
        noise_multiplier: The standard deviation of the noise on the sum of gradients, divided by `max_grad_norm`.
        max_grad_norm: The norm to which every sample's gradient is clipped.
        rate: The learning rate.
        delta: The δ at which Opacus' accountant computes ε.
        seed: The seed of the batch and the noise.
    """
    client = copy.deepcopy(model).train()
    before = {name: value.clone() for name, value in client.state_dict().items()}
    generator = torch.Generator().manual_seed(seed)
    samples = TensorDataset(inputs, targets, torch.arange(len(inputs)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seeded noise is not secure
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
            batch, labels, drawn = next(iter(loader))
        F.cross_entropy(private(batch), labels).backward()
        optimiser.step()
        epsilon = float(engine.get_epsilon(delta))
    leak = Leak.from_update(
        model, before, client.state_dict(), rate=rate, batch_size=len(drawn), input_shape=tuple(inputs.shape[1:])
    )
    return PrivateUpdate(leak, drawn, epsilon, noise_multiplier * max_grad_norm / batch_size)
