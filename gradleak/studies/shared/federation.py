"""A federation that trains: clients with shares of the digits take one step per round, and a server averages them."""

from __future__ import annotations

import copy
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Update:
    """A client's update in one round as the server sees it, and the private batch that caused it."""

    leak: Leak
    inputs: Tensor
    targets: Tensor


@dataclass
class Federation:
    """A server and its clients.

    Attributes:
        model: The server's model.
        shares: The samples, inputs and labels, from which each client draws its batches.
        test: Digits on which the model is tested.
        generator: The source of the clients' random batches.
    """

    model: nn.Module
    shares: list[tuple[Tensor, Tensor]]
    test: tuple[Tensor, Tensor]
    generator: torch.Generator

    @classmethod
    def of(cls, clients: int, dtype: torch.dtype, seed: int, device: str) -> Federation:
        """Return a federation before its first round; the training digits are dealt out to the clients in turn."""
        train, test = data.load("digits", "train"), data.load("digits", "test")
        shares = [
            (train.images[place::clients].to(device, dtype), train.labels[place::clients].to(device))
            for place in range(clients)
        ]
        tested = test.images.to(device, dtype), test.labels.to(device)
        return cls(digit_network(seed).to(device, dtype), shares, tested, torch.Generator().manual_seed(seed))

    def round(self) -> list[Update]:
        """Let every client take one step of gradient descent, average their weights, and return all updates."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        sent, states = [], []
        for inputs, targets in self.shares:
            chosen = torch.randperm(len(inputs), generator=self.generator)[:SIZE]
            after = stepped(self.model, inputs[chosen], targets[chosen])
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


def stepped(model: nn.Module, inputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Return a client's weights after one step of gradient descent on a batch."""
    client = copy.deepcopy(model)
    optimiser = torch.optim.SGD(client.parameters(), lr=RATE)
    F.cross_entropy(client(inputs), targets).backward()
    optimiser.step()
    return {name: value.detach() for name, value in client.state_dict().items()}
