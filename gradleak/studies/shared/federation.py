"""A federation that trains: clients with shares of the digits take one step per round, and a server averages them."""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gradleak import data
from gradleak.leak import Leak

# The step size of gradient descent, the samples in a client's batch, and the units of the hidden layer.
RATE, SIZE, WIDTH = 0.5, 4, 64


def digit_network(seed: int) -> nn.Sequential:
    """Return a network of two Linear layers with biases, for digits of 8 × 8 pixels."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))


class Update(NamedTuple):
    """A client's update in one round as the server sees it, and the private batch that caused it."""

    leak: Leak
    inputs: Tensor
    targets: Tensor


class Federation:
    """A server's `model`, its clients, and digits on which the model is tested.

    Args:
        clients: The number of clients, to whom the training digits are dealt out in turn.
        dtype: The precision of the training.
        seed: The seed of the model and of the clients' random batches.
        device: The device of the training.
    """

    def __init__(self, clients: int, dtype: torch.dtype, seed: int, device: str) -> None:
        train, test = data.load("digits", "train"), data.load("digits", "test")
        self.model = digit_network(seed).to(device, dtype)
        self.generator = torch.Generator().manual_seed(seed)
        images, labels = train.images.to(device, dtype), train.labels.to(device)
        self.shares = [(images[place::clients], labels[place::clients]) for place in range(clients)]
        self.test = test.images.to(device, dtype), test.labels.to(device)

    def round(self) -> list[Update]:
        """Let every client take one step of gradient descent, average their weights, and return all updates."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        sent, states = [], []
        for inputs, targets in self.shares:
            chosen = torch.randperm(len(inputs), generator=self.generator)[:SIZE]
            client = copy.deepcopy(self.model)
            optimiser = torch.optim.SGD(client.parameters(), lr=RATE)
            F.cross_entropy(client(inputs[chosen]), targets[chosen]).backward()
            optimiser.step()
            after = {name: value.detach() for name, value in client.state_dict().items()}
            leak = Leak.from_update(
                self.model, before, after, rate=RATE, batch_size=len(chosen), input_shape=tuple(inputs.shape[1:])
            )
            states.append(after)
            sent.append(Update(leak, inputs[chosen], targets[chosen]))
        self.model.load_state_dict({name: torch.stack([one[name] for one in states]).mean(dim=0) for name in before})
        return sent

    def accuracy(self) -> float:
        """Return the share of test digits that the server's model classifies correctly."""
        with torch.no_grad():
            return float((self.model(self.test[0]).argmax(dim=1) == self.test[1]).double().mean())
