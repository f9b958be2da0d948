"""Whether the arrivals of an open loop were those that were asked for. Pure.

```
asked       when requests were due: the level's schedule, which anybody can compute again from its seed
sent        when they were written
lateness    sent - scheduled; a turn is scheduled no earlier than the end of the answer that it goes on from
sent rate   asked rate x requests sent / requests due x span asked / span sent, first to last request. Of a schedule of
            exactly the asked rate it is that rate, whatever the luck of its seed; every 1 % more time reads 1 % less
cv          deviation of the gaps over their mean: 0 even, 1 Poisson
dispersion  variance over mean of the requests per window of WINDOW_REQUESTS / rate seconds: 0 even, 1 Poisson, cv^2 for
            gamma gaps in long windows (Cox, Renewal Theory, 1962, 4.5)
```

What is sent is held against what this seed's schedule has, not against the ideal process: a sample of 300 Poisson gaps
has a cv of 1 +- 0.06 by itself, and a client that is late would hide in that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune.load import stats
from autotune.load.arrivals import schedule
from autotune.records import ArrivalCheck, Arrivals, LoadLevel, RequestRecord

MAX_RATE_OFF = 0.01
"""Share of the asked rate that the sent one may be off."""

MAX_CV_OFF = 0.1
"""What the coefficient of variation may be off: this much of what was asked, or this where that is below 1."""

MAX_DISPERSION_OFF = 0.5
"""The same for the dispersion, which a shift of the windows alone moves by sqrt(2 / windows), 0.2 of 40."""

RATE_SLACK_S = 0.005
"""A level of a fraction of a second is not off by its last request's few milliseconds."""

MIN_SENT = 20
"""Fewer requests have a rate, but no cv."""

WINDOW_REQUESTS = 10
MIN_WINDOWS = 10

_SAME_S = 1e-3
"""Records may hold rounded times."""


def arrival_check(level: LoadLevel, records: Sequence[RequestRecord]) -> ArrivalCheck | None:
    """Sent arrivals beside those asked for.

    None of a closed loop, whose requests come when slots are free, and where fewer than two were sent.
    """
    if level.arrivals is Arrivals.CLOSED or not level.rate_rps:
        return None
    due_s = _due(level, records)
    pairs = sorted((at, r.sent_s) for at, r in zip(due_s, records, strict=True) if r.sent_s is not None)
    if len(pairs) < 2:
        return None
    asked = np.array([at for at, _ in pairs])
    sent = np.sort(np.array([at for _, at in pairs]))
    late = [r.sent_s - r.scheduled_s for r in records if r.sent_s is not None]
    return ArrivalCheck(
        asked_rate_rps=level.rate_rps,
        sent_rate_rps=level.rate_rps * len(pairs) / len(records) * _stretch(asked, sent),
        asked_cv=_cv(asked),
        cv=_cv(sent),
        asked_dispersion=_dispersion(asked, asked, level.rate_rps),
        dispersion=_dispersion(sent, asked, level.rate_rps),
        lateness_p50_s=float(np.percentile(late, 50)),
        lateness_p99_s=float(np.percentile(late, 99)),
        waited=sum(r.scheduled_s - at > _SAME_S for at, r in zip(due_s, records, strict=True)),
    )


def arrivals_off(check: ArrivalCheck) -> tuple[str, ...]:
    """What of the sent arrivals is not as asked, in words; nothing where all of it is."""
    found = []
    if abs(check.sent_rate_rps / check.asked_rate_rps - 1) > MAX_RATE_OFF:
        found.append(f"{check.sent_rate_rps:.4g} requests/s were sent, {check.asked_rate_rps:.4g} asked for")
    shapes = (
        ("coefficient of variation of the gaps", check.cv, check.asked_cv, MAX_CV_OFF),
        ("dispersion of the counts", check.dispersion, check.asked_dispersion, MAX_DISPERSION_OFF),
    )
    for name, got, asked, bound in shapes:
        if got is not None and asked is not None and abs(got - asked) > bound * max(1.0, asked):
            found.append(f"the {name} was {got:.2f}, {asked:.2f} asked for")
    return tuple(found)


def _due(level: LoadLevel, records: Sequence[RequestRecord]) -> list[float]:
    """When each request was asked for.

    Records that were planned otherwise have their own times: a trace's, which the level alone does not tell, and what
    came of another version. They are known by a request that was due before its time: turns only ever wait.
    """
    own = [record.scheduled_s for record in records]
    if level.arrivals is Arrivals.TRACE:
        return own
    planned = schedule(level) or ()
    if any(record.index >= len(planned) for record in records):
        return own
    due = [planned[record.index] for record in records]
    early = any(mine < theirs - _SAME_S for mine, theirs in zip(own, due, strict=True))
    return own if early else due


def _stretch(asked: stats.Floats, sent: stats.Floats) -> float:
    """Span asked over span sent, first to last request; 1 where they differ by nothing that matters."""
    span, took = float(asked[-1] - asked[0]), float(sent[-1] - sent[0])
    return 1.0 if abs(span - took) <= RATE_SLACK_S or took <= 0 else span / took


def _cv(times_s: stats.Floats) -> float | None:
    gaps = np.diff(times_s)
    if len(times_s) < MIN_SENT or gaps.mean() <= 0:
        return None
    return float(gaps.std() / gaps.mean())


def _dispersion(times_s: stats.Floats, asked_s: stats.Floats, rate_rps: float) -> float | None:
    """Of `times_s` in windows over `asked_s`. They begin half a gap before the first request, so that evenly spaced
    requests never lie on their edges."""
    width = WINDOW_REQUESTS / rate_rps
    windows = int((asked_s[-1] - asked_s[0]) / width)
    if windows < MIN_WINDOWS:
        return None
    start = asked_s[0] - 0.5 / rate_rps
    counts, _ = np.histogram(times_s, bins=windows, range=(start, start + windows * width))
    return float(counts.var() / counts.mean()) if counts.mean() > 0 else None
