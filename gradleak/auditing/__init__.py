"""Report what the gradients of any model leak: `gradleak.audit(model, inputs, targets)`."""

from gradleak.auditing.findings import MEASURES, TARGETS, Cost, Finding, NotTried, Outcome
from gradleak.auditing.report import Report
from gradleak.auditing.running import audit, audit_update

__all__ = ["MEASURES", "TARGETS", "Cost", "Finding", "NotTried", "Outcome", "Report", "audit", "audit_update"]
