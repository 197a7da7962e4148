"""Audit the clients of a Flower federation in every round; needs `gradleak[flower]`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.common import parameters_to_ndarrays
from flwr.server.strategy import Strategy
from torch import nn

from gradleak.auditing.report import Report
from gradleak.auditing.running import audit_update
from gradleak.leak import Leak

# Returns what is known about a client's training data in a round, by the client's id and the round.
Truth = Callable[[str, int], dict[str, Any]]


class AuditedStrategy(Strategy):
    """A strategy that audits each client's update before a wrapped strategy aggregates it.

    The attribute `reports` has the reports by round and client id.

    Args:
        strategy: The wrapped strategy.
        model: The federation's model, whose parameters are sent in the order of its state dict.
        rate: The learning rate of the clients' gradient descent.
        batch_size: The number of samples in each step.
        input_shape: The shape of one input.
        local_steps: The number of steps in each round.
        truth: Returns the private `inputs` and `targets` for a client id and a round, if an experiment knows them.
        options: Other arguments of `gradleak.audit_update`.
    """

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        *,
        rate: float,
        batch_size: int,
        input_shape: tuple[int, ...],
        local_steps: int = 1,
        truth: Truth | None = None,
        **options: Any,
    ) -> None:
        self.strategy, self.model, self.truth, self.options = strategy, model, truth, options
        self.sent: dict[str, Any] = {
            "rate": rate,
            "batch_size": batch_size,
            "input_shape": input_shape,
            "local_steps": local_steps,
        }
        self.before: dict[str, torch.Tensor] = {}
        self.reports: dict[int, dict[str, Report]] = {}

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Store the parameters that are sent, and let the wrapped strategy choose the clients."""
        self.before = self._state(parameters)
        return self.strategy.configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Audit the clients' updates, and let the wrapped strategy aggregate them."""
        for client, answer in results:
            leak = Leak.from_update(self.model, self.before, self._state(answer.parameters), **self.sent)
            truth = self.truth(client.cid, server_round) if self.truth else {}
            report = audit_update(leak, **(self.options | truth))
            self.reports.setdefault(server_round, {})[client.cid] = report
        return self.strategy.aggregate_fit(server_round, results, failures)

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Call the wrapped strategy."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Call the wrapped strategy."""
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Call the wrapped strategy."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """Call the wrapped strategy."""
        return self.strategy.evaluate(server_round, parameters)

    def _state(self, parameters: Any) -> dict[str, torch.Tensor]:
        """Return the state dict in a message."""
        like = self.model.state_dict()
        arrays = parameters_to_ndarrays(parameters)
        return {name: torch.as_tensor(array).to(like[name]) for name, array in zip(like, arrays, strict=True)}
