"""gradleak: attacks on gradients in federated learning, audits of models, and an executable book about both."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = [
    "Leak",
    "attacks",
    "audit",
    "audit_update",
    "augment",
    "data",
    "defenses",
    "images",
    "labels",
    "metrics",
    "models",
    "observe",
    "precision",
    "sequences",
]

if TYPE_CHECKING:
    from gradleak import augment, data, defenses, images, labels, metrics, models, precision, sequences
    from gradleak.auditing import audit, audit_update
    from gradleak.catalogue import attacks
    from gradleak.leak import Leak, observe

_FROM = {
    "Leak": "gradleak.leak",
    "attacks": "gradleak.catalogue",
    "audit": "gradleak.auditing",
    "audit_update": "gradleak.auditing",
    "observe": "gradleak.leak",
}


def __getattr__(name: str) -> Any:
    # Import lazily, so that `gradleak --help` does not wait for torch.
    if name in _FROM:
        return getattr(importlib.import_module(_FROM[name]), name)
    if name in __all__:
        return importlib.import_module(f"gradleak.{name}")
    raise AttributeError(f"module 'gradleak' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
