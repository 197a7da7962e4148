"""What the clients of a Flower federation give away, round by round: needs `gradleak[flower]`."""

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

# What a client sent, whose it is, and the round: what it is known to have trained on, if anything.
Truth = Callable[[str, int], dict[str, Any]]


class AuditedStrategy(Strategy):
    """A strategy that audits each client's update before the strategy inside aggregates it.

    `model` is the federation's; its parameters travel in the order of its state dict. Clients are assumed to take
    `local_steps` steps of gradient descent with `rate` on `batch_size` samples each. `reports`: by round, and by client
    id. `truth` (client id, round) may return the private `inputs` and `targets`, where an experiment knows them; other
    options are those of `gradleak.audit_update`.
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
        """Keep what the clients are sent, and let the strategy inside choose them."""
        self.before = self._state(parameters)
        return self.strategy.configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Audit what the clients sent, and let the strategy inside aggregate it."""
        for client, answer in results:
            seen = Leak.from_update(self.model, self.before, self._state(answer.parameters), **self.sent)
            known = self.truth(client.cid, server_round) if self.truth else {}
            report = audit_update(seen, **(self.options | known))
            self.reports.setdefault(server_round, {})[client.cid] = report
        return self.strategy.aggregate_fit(server_round, results, failures)

    def initialize_parameters(self, client_manager: Any) -> Any:
        """Begin as the strategy inside does."""
        return self.strategy.initialize_parameters(client_manager)

    def configure_evaluate(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Evaluate as the strategy inside does."""
        return self.strategy.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(self, server_round: int, results: Any, failures: Any) -> Any:
        """Aggregate evaluations as the strategy inside does."""
        return self.strategy.aggregate_evaluate(server_round, results, failures)

    def evaluate(self, server_round: int, parameters: Any) -> Any:
        """Evaluate as the strategy inside does."""
        return self.strategy.evaluate(server_round, parameters)

    def _state(self, parameters: Any) -> dict[str, torch.Tensor]:
        """Return the state dict that a message holds."""
        like = self.model.state_dict()
        arrays = parameters_to_ndarrays(parameters)
        return {name: torch.as_tensor(array).to(like[name]) for name, array in zip(like, arrays, strict=True)}
