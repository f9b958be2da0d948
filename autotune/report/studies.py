"""All studies in a table. By itself, so that `autotune list` does not wait for what draws fronts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import RenderableType
from rich.text import Text

from autotune.report.grid import add, column, grid, titled
from autotune.report.wording import MISSING, number, printable, seconds

_NUMERIC = frozenset({"trials", "measured", "infeasible", "trial", "elapsed", "pid"})


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyRow:
    """One line of `autotune list` and `status`.

    Attributes:
        state: e.g. `running`, `finished`, `interrupted`.
        done: trials that count against `wanted`, as do `measured` and `infeasible`: repeats are none of them.
        wanted: trials asked for; None when unknown.
        phase: what the running attempt does; None when nothing runs.
        elapsed_s: of the running tuner; None when nothing runs.
    """

    name: str
    model: str
    workload: str
    engine: str
    simulated: bool
    state: str
    done: int
    wanted: int | None = None
    measured: int = 0
    infeasible: int = 0
    trial: int | None = None
    phase: str | None = None
    elapsed_s: float | None = None
    pid: int | None = None


def studies_table(rows: Sequence[StudyRow], *, live: bool = False) -> RenderableType:
    """`autotune list`; with `live`, `autotune status` with trial, phase and elapsed time."""
    if not rows:
        return Text("No study is running.\n" if live else "There is no study yet.\n")
    live_heads = ("trial", "phase", "elapsed", "pid") if live else ()
    table = grid()
    for head in ("study", "model", "workload", "engine", "state", "trials", "measured", "infeasible", *live_heads):
        column(table, head, right=head in _NUMERIC, whole=head == "study")
    for row in rows:
        wanted = MISSING if row.wanted is None else str(row.wanted)
        cells = [
            *(printable(row.name), printable(row.model), printable(row.workload)),
            f"{row.engine} (simulated)" if row.simulated and row.engine != "simulated" else row.engine,
            *(row.state, f"{row.done} of {wanted}", str(row.measured), str(row.infeasible)),
        ]
        if live:
            cells += [number(row.trial), row.phase or MISSING, seconds(row.elapsed_s), _plain(row.pid)]
        add(table, *cells)
    return titled("Running" if live else "Studies", table)


def _plain(value: int | None) -> str:
    return MISSING if value is None else str(value)
