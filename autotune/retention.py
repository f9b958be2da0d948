"""What may be deleted of what studies leave behind, and what is lost with it. Pure: files and facts come in.

Figures stay in the database whatever is deleted. What goes is the evidence below them: the requests of each load level,
from which every figure can be computed again, and the server's words.

| file | is kept while |
|---|---|
| any | its study runs, its attempt is open, or it is younger than the limit |
| of an attempt that ended its trial | the trial, or a repeat of it, is baseline, on the front, pick or promoted |
| of an attempt that was interrupted or spoilt by its environment; a draft | - |
| a cached answer of a vLLM | a study of this folder used that version, or it is the latest of its command |
| a calibration | a study of this folder used its version of vLLM, or it is the latest of its machine and GPU |
| compiled code | a server is using it, or used it within the limit |
| the temporary folder of a server | that server, or who looks after it, runs |
| of a verification's launches | its promotion is in the history, or its server may still run |
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from autotune.engine.flag_cache import CachedAnswer
from autotune.errors import InvalidOption
from autotune.records import Origin, Trial
from autotune.store.gate_files import GateFile
from autotune.store.raw_files import FileKind, RawFile
from autotune.store.study_record import AttemptRecord, AttemptState

_AGE = re.compile(r"(\d{1,6})\s*([smhdw])", re.ASCII)
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


class Part(StrEnum):
    """What can be chosen for deletion; in the words of the options."""

    RAW = "raw"
    LOGS = "logs"
    LEFTOVERS = "leftovers"
    FLAG_CACHES = "flag-caches"
    CALIBRATIONS = "calibrations"
    COMPILE_CACHES = "compile-caches"
    GATES = "gates"


class Keep(StrEnum):
    """Why a file stays."""

    RUNNING = "its study is running"
    OPEN = "its attempt is not finished"
    UNKNOWN = "its trial is not in the database"
    BASELINE = "of the baseline"
    PROMOTED = "of a promoted config"
    PICK = "of the recommended config"
    FRONT = "on the front"
    RECENT = "younger than the limit"
    USED = "of a vLLM version that studies used"
    LATEST = "the latest answer of its command"
    NEWEST = "the latest calibration of its machine and GPU"
    IN_USE = "a server is using it"
    NOT_CHOSEN = "not asked for"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What decides about one study's files.

    Attributes:
        running: somebody holds its lock.
        protected: trials whose evidence stays, with the reason; see `protected_trials`.
        gate_files: of its verifications.
        promoted_gates: folders of those that a promotion rests on.
    """

    name: str
    running: bool
    protected: Mapping[int, Keep]
    attempts: tuple[AttemptRecord, ...]
    files: tuple[RawFile, ...]
    gate_files: tuple[GateFile, ...] = ()
    promoted_gates: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What no study owns beside flag answers: a calibration's file, a folder of compiled code, one that a server left.

    Attributes:
        version: of vLLM; None where it is not known, or the file is damaged.
        group: machine and GPU, of a calibration.
        used_at: UTC.
    """

    path: Path
    part: Part
    size_bytes: int
    used_at: datetime
    version: str | None = None
    group: tuple[str, ...] = ()
    in_use: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LostFigures:
    """A trial whose figures can no longer be computed from its requests; they stay in the database."""

    study: str
    trial: int
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """How much stays, and why."""

    reason: Keep
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    """What would be deleted, each with the part that it belongs to."""

    files: tuple[tuple[RawFile, Part], ...]
    answers: tuple[CachedAnswer, ...]
    kept: tuple[Kept, ...]
    lost: tuple[LostFigures, ...]
    shared: tuple[Shared, ...] = ()
    gates: tuple[GateFile, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of everything that would be deleted."""
        files = sum(file.size_bytes for file, _ in self.files)
        answers = sum(answer.size_bytes for answer in self.answers)
        gates = sum(file.size_bytes for file in self.gates)
        return files + gates + answers + sum(one.size_bytes for one in self.shared)


def parse_age(text: str) -> timedelta:
    """`30d`, `12h`, `90m`, `2w`, `0s`.

    Raises:
        InvalidOption: anything else.
    """
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InvalidOption("--older-than", text, "a whole number and one of s, m, h, d, w, such as 30d or 12h")
    return timedelta(seconds=int(match[1]) * _UNITS_S[match[2]])


def protected_trials(
    trials: Sequence[Trial], *, front: Iterable[int], pick: int | None, promoted: Iterable[int]
) -> dict[int, Keep]:
    """The trials whose evidence stays; repeats of their configs included, since figures are means over all of them."""
    hashes = {trial.number: trial.config.hash for trial in trials}
    reasons: dict[str, Keep] = {}
    ranked = (
        (Keep.BASELINE, [trial.number for trial in trials if trial.number == 0 or trial.origin is Origin.BASELINE]),
        (Keep.PROMOTED, promoted),
        (Keep.PICK, [] if pick is None else [pick]),
        (Keep.FRONT, front),
    )
    for reason, numbers in ranked:
        for number in numbers:
            if number in hashes:
                reasons.setdefault(hashes[number], reason)
    return {number: reasons[key] for number, key in hashes.items() if key in reasons}


def plan_retention(
    studies: Sequence[StudyFacts],
    answers: Sequence[CachedAnswer],
    *,
    used_versions: Iterable[str],
    parts: Iterable[Part],
    now: datetime,
    older_than: timedelta,
    shared: Sequence[Shared] = (),
) -> RetentionPlan:
    """What may go.

    Args:
        answers: of the flag cache.
        used_versions: of vLLM, by the studies in the database.
        parts: what was asked for.
        now: UTC-aware.
        shared: calibrations, compiled code and what servers left.
    """
    wanted, youngest = frozenset(parts), now - older_than
    files: list[tuple[RawFile, Part]] = []
    gates: list[GateFile] = []
    stays: list[tuple[Keep, int]] = []
    for study in studies:
        attempts = {(attempt.trial, attempt.number): attempt for attempt in study.attempts}
        for file in study.files:
            verdict = _judge(file, study, attempts.get((file.trial, file.attempt)), youngest)
            if isinstance(verdict, Part) and verdict in wanted:
                files.append((file, verdict))
            else:
                stays.append((verdict if isinstance(verdict, Keep) else Keep.NOT_CHOSEN, file.size_bytes))
        for one in study.gate_files:
            reason = _why_gate(one, study, youngest)
            if reason is None and Part.GATES in wanted:
                gates.append(one)
            else:
                stays.append((reason or Keep.NOT_CHOSEN, one.size_bytes))
    gone: list[CachedAnswer] = []
    used = frozenset(used_versions)
    for answer in answers:
        reason = _why_kept(answer, answers, used, youngest)
        if reason is None and Part.FLAG_CACHES in wanted:
            gone.append(answer)
        else:
            stays.append((reason or Keep.NOT_CHOSEN, answer.size_bytes))
    going: list[Shared] = []
    for cache in shared:
        reason = _why_shared(cache, shared, used, youngest)
        if reason is None and cache.part in wanted:
            going.append(cache)
        else:
            stays.append((reason or Keep.NOT_CHOSEN, cache.size_bytes))
    return RetentionPlan(
        files=tuple(files),
        answers=tuple(gone),
        kept=_summed(stays),
        lost=_lost(files),
        shared=tuple(going),
        gates=tuple(gates),
    )


def _judge(file: RawFile, study: StudyFacts, attempt: AttemptRecord | None, youngest: datetime) -> Part | Keep:
    """The part that a file belongs to where it may go, else why it stays."""
    if study.running:
        return Keep.RUNNING
    if attempt is None:
        return Keep.UNKNOWN
    if attempt.state is AttemptState.OPEN:
        return Keep.OPEN
    dead = attempt.state is not AttemptState.ENDED or file.kind is FileKind.DRAFT
    if not dead and file.trial in study.protected:
        return study.protected[file.trial]
    # The later of both: a copied folder has new times, a restored one may have old ones.
    if max(file.modified_at, attempt.ended_at or file.modified_at) > youngest:
        return Keep.RECENT
    if dead:
        return Part.LEFTOVERS
    return Part.LOGS if file.kind is FileKind.LOG else Part.RAW


def _why_gate(file: GateFile, study: StudyFacts, youngest: datetime) -> Keep | None:
    if study.running:
        return Keep.RUNNING
    if file.open:
        return Keep.OPEN
    if file.gate in study.promoted_gates:
        return Keep.PROMOTED
    return Keep.RECENT if file.modified_at > youngest else None


def _why_kept(
    answer: CachedAnswer, all_answers: Sequence[CachedAnswer], used: frozenset[str], youngest: datetime
) -> Keep | None:
    if answer.modified_at > youngest:
        return Keep.RECENT
    if answer.version is None:
        return None  # a draft, or damaged: it is never read
    if answer.version in used:
        return Keep.USED
    same = (other.modified_at for other in all_answers if other.command == answer.command and other.version is not None)
    return Keep.LATEST if answer.modified_at >= max(same) else None


def _why_shared(one: Shared, every: Sequence[Shared], used: frozenset[str], youngest: datetime) -> Keep | None:
    if one.in_use:
        return Keep.IN_USE
    if one.used_at > youngest:
        return Keep.RECENT
    if one.part is not Part.CALIBRATIONS or one.version is None:
        return None
    if one.version in used:
        return Keep.USED
    same = (o.used_at for o in every if o.part is one.part and o.group == one.group and o.version is not None)
    return Keep.NEWEST if one.used_at >= max(same) else None


def _summed(stays: Sequence[tuple[Keep, int]]) -> tuple[Kept, ...]:
    return tuple(
        Kept(reason=reason, files=len(sizes), size_bytes=sum(sizes))
        for reason in Keep
        if (sizes := [size for kept, size in stays if kept is reason])
    )


def _lost(files: Sequence[tuple[RawFile, Part]]) -> tuple[LostFigures, ...]:
    """Attempts that did not end a trial have no figures to lose."""
    levels: dict[tuple[str, int], list[str]] = {}
    for file, part in files:
        if part is Part.RAW and file.level is not None:
            levels.setdefault((file.study, file.trial), []).append(file.level)
    return tuple(LostFigures(study=s, trial=t, levels=tuple(names)) for (s, t), names in levels.items())
