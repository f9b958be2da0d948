"""Service level objectives as people write them, on the command line and in files; pure."""

from __future__ import annotations

import math
import re

from autotune.errors import InvalidOption
from autotune.records import Limit, Slo, SloMetric

SLO_METRICS = tuple(metric.value for metric in SloMetric)
"""What an SLO may limit; lower is better."""

_LIMIT = re.compile(
    r"(?:(?P<metric>[A-Za-z_][A-Za-z0-9_]*)\s*<=?\s*)?(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|)", re.ASCII
)
_UNIT_S = {"ms": 1e-3, "s": 1.0}


def parse_slo(text: str, *, option: str = "--slo") -> Slo:
    """An SLO from text: `ttft_p95<=500ms,tpot_p95<=50ms,error_rate<=0`; a bare `1.5s` limits `ttft_p95`.

    Raises:
        InvalidOption: not of that form, an unknown metric or one that is limited twice, a time limit of 0, or an error
            rate that is no share.
    """
    limits = [_limit(part.strip(), text, option) for part in text.split(",")]
    if len({limit.metric for limit in limits}) < len(limits):
        raise InvalidOption(option, text, "each METRIC once")
    return Slo.made(limits)


def _limit(part: str, text: str, option: str) -> Limit:
    metrics = ", ".join(SLO_METRICS)
    found = _LIMIT.fullmatch(part)
    name = (found["metric"] or SloMetric.TTFT_P95.value) if found else ""
    is_time = name != SloMetric.ERROR_RATE.value
    if found is None or is_time != bool(found["unit"]):
        raise InvalidOption(
            option,
            text,
            "METRIC<=DURATION such as ttft_p95<=500ms or tpot_p95<=0.05s, error_rate<=SHARE such as error_rate<=0.01, "
            f"or several of them separated by commas; METRIC: {metrics}",
        )
    if name not in SLO_METRICS:
        raise InvalidOption(option, name, f"METRIC one of: {metrics}")
    bound = float(found["number"]) * _UNIT_S.get(found["unit"], 1.0)
    if is_time and not 0 < bound < math.inf:
        raise InvalidOption(option, text, "a limit above 0")
    if not is_time and bound >= 1:
        raise InvalidOption(option, text, "an error_rate from 0 to below 1, the share of requests that may fail")
    return Limit(metric=SloMetric(name), bound=bound)
