"""The gate's decision: from what the launches of a verification showed to a verdict. Pure."""

from autotune.promote.gate.evidence import Evidence
from autotune.promote.gate.prospects import Outlook, outlook
from autotune.promote.gate.spending import Look, looks
from autotune.promote.gate.verdict import Judgement, judge

__all__ = ["Evidence", "Judgement", "Look", "Outlook", "judge", "looks", "outlook"]
