"""Live progress of a study: a pure reducer (events in, state out), plain lines for pipes, a live block for terminals.

Events carry their time (seconds on the caller's monotonic clock), so nothing here reads one except the live view, which
is given a clock to count on between events.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Protocol, Self, assert_never

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autotune.records import Origin, Outcome, Phase, Trial
from autotune.report.wording import brief_latency, brief_rate, brief_requests, ending, printable, seconds
from autotune.units import plural

BEST_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyBegan:
    """`done` trials were there already when a study is resumed; `total` is what was asked for, None when unlimited;
    `limit_s` is what this run may take."""

    at_s: float
    study: str
    total: int | None
    simulated: bool
    done: int = 0
    limit_s: float | None = None
    front: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialBegan:
    """An attempt of a trial starts.

    Attributes:
        settings: what the config changes, short.
        repeat: it launches an earlier config again and does not count against the total.
        repeats_left: launches again that are still to come, this one included.
    """

    at_s: float
    number: int
    settings: str = ""
    repeat: bool = False
    repeats_left: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseBegan:
    """The running attempt enters a phase; `detail` is e.g. the level or the last milestone."""

    at_s: float
    number: int
    phase: Phase
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEnded:
    """A trial ended; `front` is the front with it."""

    at_s: float
    trial: Trial
    front: tuple[Trial, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A message that stays on the screen, e.g. why a stop takes its time."""

    at_s: float
    text: str


Event = StudyBegan | TrialBegan | PhaseBegan | TrialEnded | Said


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A trial that has begun and not ended."""

    number: int
    began_s: float
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known at one moment.

    Attributes:
        counted: trials that ended and count against the total, earlier runs included.
        repeating: the latest trial is a repeat; the trials that count are over.
        repeats_done: repeats that this run ended; `repeats_left` are still to come, the running one included.
        paces_s: durations of the trials that this run launched and ended, repeats included; the ETA is their mean.
        running: all trials that run, in the order in which they began; `number`, `settings` and what follows are those
            of the one that was heard of last.
    """

    study: str = ""
    total: int | None = None
    limit_s: float | None = None
    simulated: bool = False
    began_s: float | None = None
    counted: int = 0
    measured: int = 0
    infeasible: int = 0
    repeating: bool = False
    repeats_done: int = 0
    repeats_left: int = 0
    number: int | None = None
    settings: str = ""
    trial_began_s: float | None = None
    phase: Phase | None = None
    phase_began_s: float | None = None
    detail: str = ""
    paces_s: tuple[float, ...] = ()
    front: tuple[Trial, ...] = ()
    running: tuple[Running, ...] = ()

    def elapsed_s(self, now_s: float) -> float | None:
        """Since this run began; None before."""
        return None if self.began_s is None else max(0.0, now_s - self.began_s)

    def remaining_s(self, now_s: float) -> float | None:
        """At the pace so far, within the limit; None while no trial ended or without a total."""
        if self.total is None or not self.paces_s:
            return None
        pace = sum(self.paces_s) / len(self.paces_s)
        spent = sum(min(pace, max(0.0, now_s - one.began_s)) for one in self.running)
        # Repeats come last: a study whose space is spent never reaches its total.
        trials_left = 0 if self.repeating else max(0, self.total - self.counted)
        # A trial that takes longer than its predecessors must not make the estimate shrink for the others.
        left = max(0.0, pace * (trials_left + self.repeats_left) - spent) / max(1, len(self.running))
        elapsed = self.elapsed_s(now_s)
        return left if self.limit_s is None or elapsed is None else min(left, max(0.0, self.limit_s - elapsed))


def advance(state: Progress, event: Event) -> Progress:
    """The state after an event."""
    match event:
        case StudyBegan():
            return Progress(
                study=event.study,
                total=event.total,
                limit_s=event.limit_s,
                simulated=event.simulated,
                began_s=event.at_s,
                counted=event.done,
                front=event.front,
            )
        case TrialBegan():
            known = _running(state, event.number)
            one = Running(number=event.number, began_s=known.began_s if known else event.at_s, settings=event.settings)
            return replace(
                state,
                number=event.number,
                settings=event.settings,
                repeating=event.repeat,
                repeats_left=event.repeats_left,
                running=(*(other for other in state.running if other.number != event.number), one),
                trial_began_s=one.began_s,
                phase=Phase.WAITING,
                phase_began_s=event.at_s,
                detail="",
            )
        case PhaseBegan():
            same = state.phase is event.phase and state.number == event.number
            heard = _running(state, event.number)
            return replace(
                state,
                number=event.number,
                settings=heard.settings if heard else state.settings,
                trial_began_s=heard.began_s if heard else state.trial_began_s,
                phase=event.phase,
                phase_began_s=state.phase_began_s if same else event.at_s,
                detail=event.detail,
            )
        case TrialEnded():
            return _ended(state, event)
        case Said():
            return state
        case _:
            assert_never(event)


def _ended(state: Progress, event: TrialEnded) -> Progress:
    outcome = event.trial.result.outcome if event.trial.result else None
    counts = event.trial.counted
    repeat = outcome is not None and not counts and event.trial.origin is not Origin.PROBE
    known = _running(state, event.trial.number)
    launched = outcome is not None and known is not None
    paces = (*state.paces_s, event.at_s - known.began_s) if launched and known is not None else state.paces_s
    return replace(
        state,
        counted=state.counted + counts,
        measured=state.measured + (counts and outcome is Outcome.MEASURED),
        infeasible=state.infeasible + (counts and outcome is Outcome.INFEASIBLE),
        repeats_done=state.repeats_done + repeat,
        repeats_left=max(0, state.repeats_left - repeat),
        paces_s=paces,
        front=event.front or state.front,
        running=tuple(one for one in state.running if one.number != event.trial.number),
        number=None,
        settings="",
        trial_began_s=None,
        phase=None,
        phase_began_s=None,
        detail="",
    )


def _running(state: Progress, number: int) -> Running | None:
    return next((one for one in state.running if one.number == number), None)


def headline(state: Progress, now_s: float) -> str:
    """`trial 5 of 24 (number 4) · measuring 41.0 s · elapsed 12 min 10 s · ETA 40 min 02 s`, later `repeat 1 of 2 ...`.

    The number is what every other line and command calls the trial: it counts from 0.
    """
    parts = [_position(state)]
    if state.number is not None:
        parts[0] += f" (number {state.number})"
    if state.phase is not None:
        spent_s = 0.0 if state.phase_began_s is None else now_s - state.phase_began_s
        spent = f" {seconds(spent_s)}" if spent_s >= 1 else ""
        detail = f" ({printable(state.detail)})" if state.detail else ""
        parts.append(f"{state.phase}{spent}{detail}")
    parts.append(f"elapsed {seconds(state.elapsed_s(now_s))}")
    parts.append(f"ETA {seconds(state.remaining_s(now_s))}")
    return " · ".join(parts)


def _position(state: Progress) -> str:
    if state.repeating:
        all_repeats = state.repeats_done + state.repeats_left
        return f"repeat {min(state.repeats_done + 1, all_repeats)} of {all_repeats}"
    if state.total is None:
        return f"trial {state.counted + 1}"
    if len(state.running) > 1:
        last = min(state.counted + len(state.running), state.total)
        return f"trials {min(state.counted + 1, state.total)}-{last} of {state.total}, {len(state.running)} at once"
    return f"trial {min(state.counted + 1, state.total)} of {state.total}"


def best_lines(state: Progress) -> tuple[str, ...]:
    """The front so far, short: most throughput first."""
    mark = " (simulated)" if state.simulated else ""
    ranked = sorted(state.front, key=lambda trial: -(trial.objectives[0].value if trial.objectives else 0))
    lines = [f"trial {trial.number}: {figures(trial)}{mark or _mark(trial)}" for trial in ranked[:BEST_SHOWN]]
    if len(ranked) > BEST_SHOWN:
        lines.append(f"and {len(ranked) - BEST_SHOWN} more")
    return tuple(lines)


def figures(trial: Trial) -> str:
    """Both objectives of a trial."""
    rate = trial.goodput_rps_per_gpu
    goodput = "" if rate is None else f"goodput {brief_requests(rate)} requests/s, "
    return (
        f"{goodput}{brief_rate(trial.output_tok_s_per_gpu)} tok/s per GPU, TTFT p95 {brief_latency(trial.ttft_p95_s)}"
    )


def _mark(trial: Trial) -> str:
    """Of a trial's own: real processes may be simulated servers."""
    return " (simulated)" if trial.result and trial.result.simulated else ""


def line_of(state: Progress, event: Event) -> str | None:
    """The plain line for an event that led to `state`; None for events that are not worth a line."""
    mark = " (simulated)" if state.simulated else ""
    match event:
        case StudyBegan():
            resumed = f", {event.done} done before" if event.done else ""
            of = plural(event.total, "trial") if event.total is not None else "no limit of trials"
            return f"study {printable(event.study)}{mark}: {of}{resumed}"
        case TrialBegan():
            what = f": {printable(event.settings)}" if event.settings else ""
            return f"{headline(state, event.at_s)}{what}"
        case PhaseBegan():
            return None if event.phase is Phase.ENDED else headline(state, event.at_s)
        case TrialEnded():
            told = f", {figures(event.trial)}{mark or _mark(event.trial)}" if event.trial.measured else ""
            best = f"; front: {', '.join(str(trial.number) for trial in state.front)}" if state.front else ""
            return f"trial {event.trial.number} {ending(event.trial)}{told}{best}"
        case Said():
            return printable(event.text)
        case _:
            assert_never(event)


class ProgressView(Protocol):
    """Shows a study while it runs. The study shell tells it every event, in order, from one thread; it never raises."""

    def tell(self, event: Event) -> None:
        """Take in an event and show what changed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class PlainProgress:
    """One line for what begins and ends, for pipes and logs; phases only when nothing was said for a while."""

    QUIET_S = 10.0

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._state = Progress()
        self._last_s: float | None = None

    @property
    def state(self) -> Progress:
        """What is known now."""
        return self._state

    def tell(self, event: Event) -> None:
        """Take in an event and write its line."""
        before = self._state
        self._state = advance(before, event)
        if isinstance(event, PhaseBegan):
            recently = self._last_s is not None and event.at_s - self._last_s < self.QUIET_S
            if before.phase is event.phase or recently:
                return
        line = line_of(self._state, event)
        if line is not None:
            self._write(line)
            self._last_s = event.at_s

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveProgress:
    """A block at the bottom of a terminal that counts on by itself; ended trials scroll above it."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._state = Progress()
        self._live = Live(
            console=console, get_renderable=self.block, refresh_per_second=2, transient=True, redirect_stdout=False
        )

    @property
    def state(self) -> Progress:
        """What is known now."""
        return self._state

    def tell(self, event: Event) -> None:
        """Take in an event; ends and messages stay on the screen."""
        self._state = advance(self._state, event)
        if isinstance(event, StudyBegan | TrialEnded | Said):
            line = line_of(self._state, event)
            if line is not None:
                self._console.print(Text(line))

    def block(self) -> RenderableType:
        """What the terminal shows now."""
        state = self._state
        if state.began_s is None:
            return Text("")
        lines = [Text(headline(state, self._clock()), style="bold")]
        if state.settings:
            lines.append(Text(f"  {printable(state.settings)}", style="dim"))
        lines += [Text(f"  best {line}", style="green") for line in best_lines(state)]
        return Group(*lines)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()


def progress_view(console: Console, clock: Callable[[], float]) -> ProgressView:
    """The live block on a terminal, plain lines anywhere else."""
    if console.is_terminal and not console.is_dumb_terminal:
        return LiveProgress(console, clock)
    return PlainProgress(lambda line: console.print(Text(line), soft_wrap=True))
