"""All criteria together. Pure.

Any broken criterion: fail. None broken, one undecided: inconclusive. Else pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.promote.gate.criteria import longest_request, memory, preemptions, quality, restarts, served
from autotune.promote.gate.evidence import Evidence
from autotune.promote.gate.performance import as_claimed, claimed_ttft, gain, overload, slo, throughput_axis, ttft_axis
from autotune.records import CriterionState, GateCriterion, GateSideName, GateVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a record of a verification is completed with.

    Attributes:
        throughput_sd, ttft_sd: of a launch's mean; None without launches.
    """

    verdict: GateVerdict
    reason: str
    criteria: tuple[GateCriterion, ...]
    throughput_sd: float | None
    ttft_sd: float | None


def judge(e: Evidence) -> Judgement:
    """The verdict, and every criterion with its figures."""
    throughput, ttft = throughput_axis(e), ttft_axis(e)
    criteria = (
        gain(e, (throughput, ttft)),
        as_claimed(e, throughput, "throughput_as_claimed"),
        as_claimed(e, ttft, "ttft_as_claimed"),
        slo(e, ttft),
        served(e),
        overload(e, ttft, claimed_ttft(e)),
        preemptions(e),
        longest_request(e),
        memory(e),
        restarts(e),
        quality(e),
    )
    verdict, reason = _verdict(criteria)
    failed = next((launch for launch in e.launches if launch.failure is not None), None)
    if failed is not None and verdict is GateVerdict.INCONCLUSIVE:
        # All the figures that are missing for it say nothing more.
        side = e.candidate if failed.side is GateSideName.CANDIDATE else e.against
        reason = f"launch {failed.place} ({side.label}) failed: {failed.failure}"
    return Judgement(
        verdict=verdict,
        reason=reason,
        criteria=criteria,
        throughput_sd=throughput.spread.pooled_sd if throughput.spread else None,
        ttft_sd=ttft.spread.pooled_sd if ttft.spread else None,
    )


def _verdict(criteria: tuple[GateCriterion, ...]) -> tuple[GateVerdict, str]:
    for state, verdict in (
        (CriterionState.BROKEN, GateVerdict.FAILED),
        (CriterionState.UNDECIDED, GateVerdict.INCONCLUSIVE),
    ):
        found = [one for one in criteria if one.state is state]
        if found:
            return verdict, "; ".join(f"{one.name.replace('_', ' ')}: {one.found}" for one in found)
    held = sum(one.state is CriterionState.HELD for one in criteria)
    return GateVerdict.PASSED, f"all {held} criteria that apply hold; {criteria[0].found}"
