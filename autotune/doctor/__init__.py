"""Is this node fit to serve and to measure? Found facts in, one verdict per check out."""

from autotune.doctor.checks import CHECKS, DRY_CHECKS, examine
from autotune.doctor.findings import Check, CheckName, Findings, Problem, Status, failed

__all__ = ["CHECKS", "Check", "CheckName", "DRY_CHECKS", "Findings", "Problem", "Status", "examine", "failed"]
