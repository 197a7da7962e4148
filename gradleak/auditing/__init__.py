"""Any model's leaks in one report: `gradleak.audit(model, inputs, targets)`."""

from gradleak.auditing.findings import MEASURES, Cost, Finding, NotTried
from gradleak.auditing.report import Report
from gradleak.auditing.running import audit, audit_update

__all__ = ["MEASURES", "Cost", "Finding", "NotTried", "Report", "audit", "audit_update"]
