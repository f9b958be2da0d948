"""A trial's attempts with every move of its life, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group

from autotune.life import ENTERED, Event
from autotune.report.grid import add, column, grid, titled
from autotune.report.wording import MISSING, printable, seconds
from autotune.store.study_record import AttemptRecord, TransitionRecord

_PHASES = frozenset(ENTERED.values())


def life_table(attempts: Sequence[AttemptRecord]) -> Group:
    """One row an attempt: when it began, the phases it went through, and what its end led to."""
    table = grid()
    hosts = [host_of(attempt) for attempt in attempts]
    for head in ("attempt", *(["on"] if any(hosts) else []), "began (UTC)", "phases, from", "ended as", "then"):
        column(table, head)
    for attempt, host in zip(attempts, hosts, strict=True):
        entered = [found for found in attempt.transitions if found.move.event in _PHASES]
        ends = [found for found in attempt.transitions if found.move.event not in {*_PHASES, Event.ATTEMPT}]
        add(
            table,
            str(attempt.number),
            *([printable(host or MISSING)] if any(hosts) else []),
            f"{attempt.started_at:%Y-%m-%d %H:%M:%S}",
            ", ".join(f"{found.move.after} {seconds(found.elapsed_s)}" for found in entered) or MISSING,
            ", ".join(_ending(found) for found in ends) or str(attempt.state),
            printable(str(ends[-1].move.after).replace("_", " ")) if ends else MISSING,
        )
    return titled("Attempts", table)


def host_of(attempt: AttemptRecord) -> str | None:
    """The machine of a cluster that it ran on, as far as is known; None on the tuner's own."""
    known = attempt.result.host if attempt.result else None
    return known or (attempt.identity.host if attempt.identity else None) or None


def _ending(found: TransitionRecord) -> str:
    reason = found.move.reason
    return str(found.move.event) if reason is None else f"{found.move.event} ({reason})"


def life_document(attempts: Sequence[AttemptRecord]) -> list[dict[str, Any]]:
    """`life` of `show --json`: one object an attempt, with its moves in order."""
    return [
        {
            "attempt": attempt.number,
            "state": str(attempt.state),
            "started_at": attempt.started_at.isoformat(),
            "ended_at": attempt.ended_at.isoformat() if attempt.ended_at else None,
            "directory": attempt.directory,
            "host": host_of(attempt),
            "moves": [
                {
                    "before": str(found.move.before),
                    "event": str(found.move.event),
                    "after": str(found.move.after),
                    "reason": str(found.move.reason) if found.move.reason else None,
                    "at": found.at_utc.isoformat(),
                    "elapsed_s": found.elapsed_s,
                    "clock": str(found.clock) if found.clock else None,
                }
                for found in attempt.transitions
            ],
        }
        for attempt in attempts
    ]
