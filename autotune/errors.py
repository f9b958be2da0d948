"""The one error tree. Each error carries its facts as fields and its own documented exit code.

```
AutotuneError
├─ BadInput                      what the operator wrote
│  ├─ UnknownName  (10 model, 11 workload, 12 space, 13 node, 14 flag, 22 study, 23 trial,
│  │                                34 promotion)
│  ├─ InvalidFile           15   a YAML file: file, key path, value, what is allowed
│  ├─ InvalidOption         24   a command-line value: option, value, what is allowed
│  ├─ NoFeasibleConfig      16   the space holds nothing that can start on this node
│  └─ StudyMismatch         21   same study name, different question
├─ VllmCommandError         17   the server command cannot be run or is not vLLM
├─ ServerUnusable           30   a server somebody else started: unreachable, refuses us, or no OpenAI server
├─ StorageError             18   read-only, full disk, not a database
│  ├─ StorageLocked         19   another program holds the database
│  └─ SchemaMismatch        29   written by another version
├─ UnsupportedHardware      20   ROCm, MIG
├─ StudyBusy                25   another tuner runs this study (or uses this node)
├─ NotPromotable            26   simulated, or nothing measured
├─ StudyFatal               27   no config can fix it: driver, gated model, missing dependency
│  └─ LoadWorkerLost             a process of the load client was killed
├─ NodeUnfit                31   a check of `doctor` failed
├─ GateFailed               33   a promotion's candidate is worse than promised, or than what runs today
├─ GateInconclusive         35   the gate's launches could not tell
├─ SloBreached              36   `check`: a running server does not keep its SLO
├─ ConfigDrifted            37   `check`: a running server is not what was promoted
├─ WorkloadDrifted          38   `check`: its users send something else than it was tuned for
├─ ClusterUnusable          39   Ray is missing or not reached, or its nodes are none or differ
└─ Interrupted             130   Ctrl-C or TERM; everything is on disk
```

Exit code 0 is success, 1 an internal error (a bug of ours), 2 a usage error reported by the argument parser,
28 a study that ended without one measured trial.
`LaunchFailed` and `ServerDied` (engine/base.py) are results, not errors of the program:
a trial turns them into an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import IntEnum

NOT_SHOWN = "<not shown>"
"""In the place of a refused value that may be a secret; redaction leaves it as it is."""


class ExitCode(IntEnum):
    """Exit codes of the `autotune` command; docs/exit-codes.md has a heading for each."""

    OK = 0
    INTERNAL = 1
    USAGE = 2
    UNKNOWN_MODEL = 10
    UNKNOWN_WORKLOAD = 11
    UNKNOWN_SPACE = 12
    UNKNOWN_NODE = 13
    UNKNOWN_FLAG = 14
    INVALID_FILE = 15
    NO_FEASIBLE_CONFIG = 16
    VLLM_COMMAND = 17
    STORAGE = 18
    STORAGE_LOCKED = 19
    UNSUPPORTED_HARDWARE = 20
    STUDY_MISMATCH = 21
    UNKNOWN_STUDY = 22
    UNKNOWN_TRIAL = 23
    INVALID_OPTION = 24
    STUDY_BUSY = 25
    NOT_PROMOTABLE = 26
    STUDY_FATAL = 27
    NOTHING_MEASURED = 28
    SCHEMA_MISMATCH = 29
    SERVER_UNUSABLE = 30
    NODE_UNFIT = 31
    NODE_BUSY = 32
    GATE_FAILED = 33
    UNKNOWN_PROMOTION = 34
    GATE_INCONCLUSIVE = 35
    SLO_BREACHED = 36
    CONFIG_DRIFTED = 37
    WORKLOAD_DRIFTED = 38
    CLUSTER_UNUSABLE = 39
    INTERRUPTED = 130


class AutotuneError(Exception):
    """Base of everything this program raises on purpose.

    Attributes:
        exit_code: what the command ends with.
        hint: what to do next, one sentence; empty when the message already says it.
    """

    exit_code: ExitCode = ExitCode.INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        """Errors come back from the nodes of a cluster: with their fields, whatever their constructors take."""
        return _again, (type(self), self.message, self.__dict__)


def _again(kind: type[AutotuneError], message: str, fields: dict[str, object]) -> AutotuneError:
    error = kind.__new__(kind, message)
    error.__dict__.update(fields)
    return error


class BadInput(AutotuneError):
    """The operator's input cannot be used."""


_KIND_EXIT = {
    "model": ExitCode.UNKNOWN_MODEL,
    "workload": ExitCode.UNKNOWN_WORKLOAD,
    "search space": ExitCode.UNKNOWN_SPACE,
    "node": ExitCode.UNKNOWN_NODE,
    "flag": ExitCode.UNKNOWN_FLAG,
    "study": ExitCode.UNKNOWN_STUDY,
    "trial": ExitCode.UNKNOWN_TRIAL,
    "promotion": ExitCode.UNKNOWN_PROMOTION,
}


class UnknownName(BadInput):
    """A name that stands for nothing we know; says the nearest ones.

    Args:
        kind: one of model, workload, search space, node, flag, study, trial, promotion.
        name: the name seen.
        allowed: the names that would have been accepted.
        source: where it was read (a file and key, or an option).
    """

    def __init__(self, kind: str, name: str, allowed: Sequence[str], *, source: str = "", hint: str = "") -> None:
        near = get_close_matches(name, allowed, n=3, cutoff=0.4)
        where = f"{source}: " if source else ""
        shown = ", ".join(near) if near else ", ".join(sorted(allowed)[:12])
        label = "did you mean" if near else "known"
        tail = f" ({label}: {shown})" if shown else ""
        super().__init__(f"{where}unknown {kind} {_shorten(name)}{tail}", hint=hint)
        self.kind, self.name, self.allowed, self.source = kind, name, tuple(allowed), source
        self.exit_code = _KIND_EXIT[kind]


class InvalidFile(BadInput):
    """A file that does not say what it should: file, key path, value seen, what is allowed."""

    exit_code = ExitCode.INVALID_FILE

    def __init__(self, file: str, key: str, value: object, allowed: str, *, hint: str = "") -> None:
        at = f" at {key}" if key else ""
        super().__init__(f"{file}{at}: {_shorten(value)} is not accepted; allowed: {allowed}", hint=hint)
        self.file, self.key, self.value, self.allowed = file, key, value, allowed


class InvalidOption(BadInput):
    """A command-line value that parses but cannot be used."""

    exit_code = ExitCode.INVALID_OPTION

    def __init__(self, option: str, value: object, allowed: str, *, hint: str = "") -> None:
        super().__init__(f"{option}: {_shorten(value)} is not accepted; allowed: {allowed}", hint=hint)
        self.option, self.value, self.allowed = option, value, allowed


class NoFeasibleConfig(BadInput):
    """Every config is refused by a rule; carries the reasons and how many configs each refused.

    Args:
        subject: what was looked through, e.g. `search space 'default'`.
    """

    exit_code = ExitCode.NO_FEASIBLE_CONFIG

    def __init__(self, subject: str, node: str, reasons: Sequence[tuple[str, int]], *, hint: str = "") -> None:
        lines = "\n".join(
            f"  {count} {'config' if count == 1 else 'configs'}: {reason}" for reason, count in reasons[:8]
        )
        super().__init__(f"{subject} has no config that can start on {node}:\n{lines}", hint=hint)
        self.subject, self.node, self.reasons = subject, node, tuple(reasons)


class StudyMismatch(BadInput):
    """The study of this name asked a different question; carries (what, stored, now) for each difference."""

    exit_code = ExitCode.STUDY_MISMATCH

    def __init__(self, study: str, differences: Sequence[tuple[str, str, str]]) -> None:
        lines = "\n".join(
            f"  {what}: the study has {_shorten(old)}, this command has {_shorten(new)}"
            for what, old, new in differences
        )
        super().__init__(
            f"study {study!r} exists and cannot be continued, because its results would not be comparable:\n{lines}",
            hint="Choose another --name for the new question, or repeat the command with the study's own values.",
        )
        self.study, self.differences = study, tuple(differences)


class VllmCommandError(AutotuneError):
    """The server command cannot be run, or what answers is not vLLM."""

    exit_code = ExitCode.VLLM_COMMAND


class ServerUnusable(AutotuneError):
    """A server that somebody else started cannot be measured: unreachable, asks for a key, or speaks another API."""

    exit_code = ExitCode.SERVER_UNUSABLE


class StorageError(AutotuneError):
    """The database or a results file cannot be read or written."""

    exit_code = ExitCode.STORAGE


class StorageLocked(StorageError):
    """Another program holds the database longer than the busy timeout."""

    exit_code = ExitCode.STORAGE_LOCKED


class SchemaMismatch(StorageError):
    """The database was written by another version of autotune or Optuna."""

    exit_code = ExitCode.SCHEMA_MISMATCH


class UnsupportedHardware(AutotuneError):
    """A machine that this program refuses to tune rather than guess (ROCm, MIG)."""

    exit_code = ExitCode.UNSUPPORTED_HARDWARE


class StudyBusy(AutotuneError):
    """Another tuner process is running this study."""

    exit_code = ExitCode.STUDY_BUSY


class NodeBusy(AutotuneError):
    """GPUs of the study are leased by another tuner, or a stranger computes on them, for longer than it waits."""

    exit_code = ExitCode.NODE_BUSY


class NotPromotable(AutotuneError):
    """A trial that must not reach production: simulated, or not measured."""

    exit_code = ExitCode.NOT_PROMOTABLE


class GateFailed(AutotuneError):
    """The verification of a candidate broke a criterion; nothing was rendered."""

    exit_code = ExitCode.GATE_FAILED


class GateInconclusive(AutotuneError):
    """The verification of a candidate broke no criterion, but could not decide all; nothing was rendered."""

    exit_code = ExitCode.GATE_INCONCLUSIVE


class SloBreached(AutotuneError):
    """A running server surely does not keep a limit of its SLO."""

    exit_code = ExitCode.SLO_BREACHED


class ConfigDrifted(AutotuneError):
    """A running server has other settings, another model or another version than were promoted."""

    exit_code = ExitCode.CONFIG_DRIFTED


class WorkloadDrifted(AutotuneError):
    """What a server's users send is surely not what its config was tuned for."""

    exit_code = ExitCode.WORKLOAD_DRIFTED


class StudyFatal(AutotuneError):
    """No config can cure it (driver, gated model, missing dependency): the study stops, everything is kept."""

    exit_code = ExitCode.STUDY_FATAL


class LoadWorkerLost(StudyFatal):
    """A process of the load client ended before its work was done, or answers no more; no config is to blame."""


class NothingMeasured(AutotuneError):
    """The study ended without a single measured trial, so there is no front."""

    exit_code = ExitCode.NOTHING_MEASURED


class NodeUnfit(AutotuneError):
    """A check of `doctor` failed: the node is not fit to serve and to measure; carries the names of those checks."""

    exit_code = ExitCode.NODE_UNFIT

    def __init__(self, checks: Sequence[str]) -> None:
        shown = ", ".join(checks)
        super().__init__(f"{len(checks)} {'check' if len(checks) == 1 else 'checks'} failed: {shown}")
        self.checks = tuple(checks)


class ClusterUnusable(AutotuneError):
    """Ray is not installed or not reached, or its nodes cannot measure one study: none is there, or they differ."""

    exit_code = ExitCode.CLUSTER_UNUSABLE


class Interrupted(AutotuneError):
    """Ctrl-C or TERM; the running attempt is stopped and stored, the study goes on with the same command."""

    exit_code = ExitCode.INTERRUPTED


def _shorten(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    text = repr(text) if isinstance(value, str) else text
    return text if len(text) <= limit else text[: limit - 1] + "…"
