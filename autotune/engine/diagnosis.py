"""What went wrong in a server's log, and in what order to turn the knobs: `autotune diagnose`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from autotune.engine.failures import FailureScanner
from autotune.engine.logs import LogEvent, LogReader, MilestoneName, Throughput
from autotune.engine.redaction import redact
from autotune.engine.remedies import remedies_for
from autotune.records import Failure, FailureClass, ServerFacts, Value

_CHUNK_BYTES = 1 << 20
_ROOMY_KV_USAGE = 0.5
_FULL_KV_USAGE = 0.95
_NOT_A_NUMBER_READ = frozenset({"simulated", "non_default_args"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict on one log; secrets are already taken out.

    Attributes:
        line: the first root cause as the log has it; None when there is no such line.
        facts: the numbers read: those of the failure first, then what the server said about itself.
        milestones: reached by the (last) run in the log, in order.
    """

    kind: FailureClass
    line: str | None
    remedies: tuple[str, ...]
    facts: tuple[tuple[str, Value], ...]
    milestones: tuple[MilestoneName, ...]
    server: ServerFacts
    exit_status: int | None = None

    def as_json_dict(self) -> dict[str, object]:
        """What `autotune diagnose --json` prints: `class`, `line`, `remedies`, `facts`."""
        return {
            "class": str(self.kind),
            "line": self.line,
            "remedies": list(self.remedies),
            "facts": dict(self.facts),
        }


class LogFollower:
    """Follows one growing log: feeds a reader and a failure scanner with the same events.

    The process engine keeps one per server; `diagnose` is the same thing over a whole file.
    """

    def __init__(self) -> None:
        self.reader = LogReader()
        self.scanner = FailureScanner()
        self._busy_lines = self._queueing_lines = self._full_lines = 0
        self.jit_compiles = 0

    def feed(self, chunk: bytes) -> bool:
        """Take in more of the log; whether the start advanced (see `LogEvent.advances`)."""
        return self._see(self.reader.feed(chunk))

    def close(self) -> bool:
        """Take in a last line that no newline ended."""
        return self._see(self.reader.close())

    def failure(self, *, exit_status: int | None = None, hung: bool = False) -> Failure:
        """The verdict so far; see `FailureScanner.failure`."""
        return self.scanner.failure(exit_status=exit_status, hung=hung)

    def diagnosis(self, *, exit_status: int | None = None, hung: bool = False) -> Diagnosis:
        """The verdict with everything that was read."""
        failure = self.failure(exit_status=exit_status, hung=hung)
        facts = dict(failure.facts) | {k: v for k, v in self._told().items() if k not in dict(failure.facts)}
        return Diagnosis(
            kind=failure.kind,
            line=failure.line,
            remedies=remedies_for(failure.kind, facts) if failure.kind is FailureClass.HEALTHY else failure.remedies,
            facts=tuple(facts.items()),
            milestones=self.reader.milestones,
            server=self.reader.facts(),
            exit_status=exit_status,
        )

    def _see(self, events: Iterable[LogEvent]) -> bool:
        advanced = False
        for event in events:
            self.scanner.see(event)
            self.jit_compiles += event.jit_kernel is not None
            if event.new_run:
                self._busy_lines = self._queueing_lines = self._full_lines = 0
            if event.throughput is not None:
                self._count(event.throughput)
            advanced = advanced or event.advances
        return advanced

    def _count(self, seen: Throughput) -> None:
        if not seen.running or seen.kv_usage is None:
            return
        self._busy_lines += 1
        self._full_lines += bool(seen.waiting and seen.kv_usage >= _FULL_KV_USAGE)
        queue = seen.waiting is not None and 2 * seen.waiting >= seen.running
        self._queueing_lines += queue and seen.kv_usage < _ROOMY_KV_USAGE

    def _mostly(self, lines: int) -> bool | None:
        """Whether that many statistics lines are most of those under load; None instead of False."""
        return (lines >= 2 and 2 * lines > self._busy_lines) or None

    def _told(self) -> dict[str, Value]:
        server = self.reader.facts()
        told = {f.name: getattr(server, f.name) for f in fields(server) if f.name not in _NOT_A_NUMBER_READ}
        told |= {"kv_full": self._mostly(self._full_lines)}
        told |= {"preemptions": self.reader.preemptions, "queueing": self._mostly(self._queueing_lines)}
        return {name: redact(v) if isinstance(v, str) else v for name, v in told.items() if v is not None}


def diagnose(log: bytes | Iterable[bytes], exit_status: int | None = None) -> Diagnosis:
    """The diagnosis of a whole log, given at once or in chunks. Never raises for what the log contains."""
    follower = LogFollower()
    chunks = (log[i : i + _CHUNK_BYTES] for i in range(0, len(log), _CHUNK_BYTES)) if isinstance(log, bytes) else log
    for chunk in chunks:
        follower.feed(chunk)
    follower.close()
    return follower.diagnosis(exit_status=exit_status)
