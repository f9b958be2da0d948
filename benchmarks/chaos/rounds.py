"""One round: a study on servers that misbehave, under a tuner that is killed; then what is left is looked at."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import secrets
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.life import Event, IllegalMove, Life, State, Transition
from benchmarks.chaos.dealing import ATTEMPTS, TRIALS, Deal, Kill, Seen, wrong
from benchmarks.chaos.driver import pynvml
from benchmarks.chaos.processes import (
    MARK,
    Computing,
    Strangers,
    end_all,
    ended,
    fork_tuner,
    left_in,
    locked_files,
    wait_until_left,
)
from benchmarks.chaos.server import PLAN

ROOT = Path(__file__).parents[2]
MODEL = "meta-llama/Llama-3.1-8B-Instruct"
GRACE_S = 0.7
"""Servers have that long from TERM to KILL."""

GONE_S = 3.0
"""After the study's end, or after a kill with a pause, nothing of it may be there for longer than this."""

HELD_UP_S = 1.0
"""By how much a nap of the harness may be too long where a round's deadlines mean something."""
SLOWED_DOWN = 2.0
"""How many times as long as when the pace was taken a healthy start may take there."""

GPUS = 2

FATAL_EXIT, NOTHING_MEASURED_EXIT = 27, 28
MOST_RUNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast this machine is today: deadlines follow from how long a healthy start takes.

    Attributes:
        start_s: of a healthy server, as measured with as many rounds at once.
    """

    start_s: float

    @property
    def deadline_s(self) -> float:
        """For a start or a level of a round in which something hangs."""
        return max(1.8, 3 * self.start_s)

    def limit_s(self, deal: Deal) -> float:
        """Within which one run of the tuner must have ended, whatever its servers do."""
        hung = sum(fault.tight for trial in deal.faults for fault in trial)
        return 3 * self.loose_s + deal.stranger * self.start_s + hung * 2 * (self.deadline_s + GRACE_S)

    @property
    def loose_s(self) -> float:
        """The same deadline for a round in which nothing is to hang."""
        return 20.0 + 20 * self.start_s


@dataclass(slots=True)
class Report:
    """What a round showed; each violation is a line of text.

    Attributes:
        slowest_start_s: of the servers that became ready.
        held_up_s: by which the longest of the harness's naps was too long.
        played_again: how often it was, because the machine had held it up.
    """

    number: int
    seconds: float = 0.0
    slowest_start_s: float = 0.0
    held_up_s: float = 0.0
    played_again: int = 0
    attempts: list[str] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    leases_left: list[str] = field(default_factory=list)
    lost_trials: list[str] = field(default_factory=list)
    wrong_outcomes: list[str] = field(default_factory=list)
    hangs: list[str] = field(default_factory=list)
    integrity_failures: list[str] = field(default_factory=list)
    strangers_hit: list[str] = field(default_factory=list)
    files_left: list[str] = field(default_factory=list)
    collisions: list[str] = field(default_factory=list)


class Round:
    """One study from its first tuner to its last.

    Args:
        folder: empty; everything of the round is in it but the cache.
        cache: shared by all rounds.

    Attributes:
        report: what it showed.
    """

    def __init__(self, deal: Deal, folder: Path, cache: Path, pace: Pace, strangers: Strangers) -> None:
        self._deal, self._folder, self._pace, self._strangers = deal, folder, pace, strangers
        self._mark = secrets.token_hex(8)
        self._gpus = folder / "gpus"
        self._temporary = folder / "tmp"
        self._database = folder / "studies" / "autotune.db"
        self._connection: sqlite3.Connection | None = None
        self._over = False
        self._finished: dict[int, str] = {}
        self._chance = random.Random(deal.number)
        self._computing: Computing | None = None
        self.report = Report(number=deal.number)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        self._environ = kept | {
            "HOME": str(folder),
            "TMPDIR": str(self._temporary),
            "PYTHONPATH": str(ROOT),
            pynvml.FOLDER: str(folder / "gpus"),
            "AUTOTUNE_CACHE_DIR": str(cache),
            "AUTOTUNE_LEASE_DIR": str(folder / "leases"),
            MARK: self._mark,
        }

    def play(self) -> Report:
        """Play it, look, and clear up."""
        begun = time.monotonic()
        self._write_files()
        if self._deal.stranger:
            self._computing = Computing(self._gpus / "nvidia0", self._deal.stranger * self._pace.start_s)
        try:
            for kill in self._deal.kills:
                self._killed(kill)
            self._to_the_end()
            self.report.seconds = time.monotonic() - begun
            self._look()
        finally:
            if self._connection is not None:
                self._connection.close()
            if self._computing is not None:
                self._computing.close()
            end_all(left_in(self._folder, self._mark))
        return self.report

    def _write_files(self) -> None:
        plan = {
            f"{trial}/{attempt}": ",".join(fault.faults).format(socket=self._strangers.door)
            for trial, dealt in enumerate(self._deal.faults)
            for attempt, fault in enumerate(dealt, start=1)
        }
        (self._folder / PLAN).write_text(json.dumps(plan), encoding="utf-8")
        (self._folder / "leases").mkdir()
        self._temporary.mkdir()
        self._gpus.mkdir()
        for index in range(GPUS):
            (self._gpus / f"nvidia{index}").touch()
        deadline_s = self._pace.deadline_s if self._deal.tight else self._pace.loose_s
        settings = {
            "attempts": ATTEMPTS, "retry_pause_s": 0.1, "stop_grace_s": GRACE_S, "abandon": 0, "repeats": 0,
            "start_deadline_s": deadline_s, "stall_deadline_s": deadline_s, "level_deadline_s": deadline_s,
            "vllm_command": f"{sys.executable} -m benchmarks.chaos.server serve", "engine": "process",
            "model": MODEL, "workload": "tiny", "space": "scheduler", "sampler": "random", "trials": TRIALS,
            "load": {"concurrency": 4, "rate_rps": 80.0, "requests": 4}, "name": "s",
        }  # fmt: skip
        (self._folder / "chaos.yaml").write_text(json.dumps(settings), encoding="utf-8")

    def _start(self) -> int:
        words = ("study", "--file", "chaos.yaml")
        return fork_tuner(self._folder, words, self._environ, self._folder / "tuner.txt")

    # --- kills ------------------------------------------------------------------------------------------------------

    def _killed(self, kill: Kill) -> None:
        """Run the tuner to the kill's moment and kill it there; one that ends before is not killed."""
        tuner = self._start()
        until = time.monotonic() + self._pace.limit_s(self._deal)
        if kill.phase in ("start", "any"):
            latest = self._pace.start_s * (1.5 if kill.phase == "start" else 8)
            moment = time.monotonic() + self._chance.uniform(0.0, latest)
        else:
            moment = until
        while time.monotonic() < moment:
            if ended(tuner) is not None:
                return
            if kill.phase not in ("start", "any") and self._phase() == kill.phase:
                break
            self._nap(0.004)
        time.sleep(kill.after_s)
        if time.monotonic() > until:
            self.report.hangs.append(f"no {kill.phase} to kill in within {self._pace.limit_s(self._deal):.0f} s")
        if ended(tuner) is not None:
            return
        phase = self._phase() or "start"
        with_keeper = kill.keeper_too and self._kill_keeper(tuner)
        os.kill(tuner, signal.SIGKILL)
        os.waitpid(tuner, 0)
        self.report.kills.append(f"{phase}, keeper too" if with_keeper else phase)
        self._remember()
        if kill.pause_s and not with_keeper:
            left = wait_until_left(self._folder, self._mark, GRACE_S + GONE_S + self._pace.start_s)
            if left:
                self.report.orphans.append(f"{len(left)} left by themselves after a kill in {phase}: {_named(left)}")
        time.sleep(kill.pause_s)

    def _kill_keeper(self, tuner: int) -> bool:
        """Kill the keeper of the open attempt, with the tuner stopped; whether there was one."""
        os.kill(tuner, signal.SIGSTOP)
        for (text,) in self._ask("SELECT identity FROM autotune_attempts WHERE state = 'open'"):
            identity = json.loads(text) if text else None
            with suppress(psutil.Error, OSError):
                if identity and abs(psutil.Process(identity["pid"]).create_time() - identity["started"]) < 0.05:
                    os.kill(identity["pid"], signal.SIGKILL)
                    return True
        return False

    def _remember(self) -> None:
        """Finished trials, as they were when the tuner was killed: they must never change again."""
        self._finished |= self._ends()

    def _ends(self) -> dict[int, str]:
        """Of each finished trial all that is stored, in short."""
        found = self._ask("SELECT number, outcome, result, finished_at FROM autotune_trials WHERE result IS NOT NULL")
        return {row[0]: hashlib.sha256(repr(row).encode()).hexdigest() for row in found}

    # --- to the end -------------------------------------------------------------------------------------------------

    def _to_the_end(self) -> None:
        for _ in range(MOST_RUNS):
            status = self._run()
            self._remember()
            if status is None or status in (0, NOTHING_MEASURED_EXIT):
                return
            if status != FATAL_EXIT:
                self.report.wrong_outcomes.append(f"the tuner ended with {status}: {self._last_words()}")
                return
        self.report.hangs.append(f"not finished after {MOST_RUNS} runs")

    def _run(self) -> int | None:
        tuner = self._start()
        limit_s = self._pace.limit_s(self._deal)
        until = time.monotonic() + limit_s
        while (status := ended(tuner)) is None:
            if time.monotonic() > until:
                self.report.hangs.append(f"the tuner did not end within {limit_s:.0f} s: {self._last_words()}")
                os.kill(tuner, signal.SIGKILL)
                os.waitpid(tuner, 0)
                return None
            self._nap(0.01)
        return status

    def _nap(self, seconds: float) -> None:
        begun = time.monotonic()
        time.sleep(seconds)
        self.report.held_up_s = max(self.report.held_up_s, time.monotonic() - begun - seconds)

    def _last_words(self) -> str:
        lines = (self._folder / "tuner.txt").read_text(errors="replace").strip().splitlines()
        return " / ".join(lines[-3:])

    # --- what is left -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._over = True
        report = self.report
        left = wait_until_left(self._folder, self._mark, GONE_S)
        if left:
            report.orphans.append(f"{len(left)} after the end: {_named(left)}")
        report.leases_left += locked_files(self._folder)
        report.files_left += [str(path.relative_to(self._temporary)) for path in self._temporary.rglob("*")]
        if self._strangers.hit() or (self._computing is not None and self._computing.hit()):
            report.strangers_hit.append("a process that is none of ours was ended")
        met = self._gpus / pynvml.COLLISIONS
        report.collisions += met.read_text(encoding="utf-8").splitlines() if met.exists() else []
        self._look_at_trials()
        self._look_at_database()
        starts = self._ask("SELECT max(elapsed_s) FROM autotune_transitions WHERE event = 'ready'")
        report.slowest_start_s = float(starts[0][0] or 0.0) if starts else 0.0

    def _look_at_trials(self) -> None:
        report, ends = self.report, self._ends()
        report.lost_trials += [
            f"trial {number} was finished and has changed or gone"
            for number, told in self._finished.items()
            if ends.get(number) != told
        ]
        trials = self._ask("SELECT number, outcome, failure_class FROM autotune_trials ORDER BY number")
        if [row[0] for row in trials] != list(range(TRIALS)) or any(row[1] is None for row in trials):
            report.lost_trials.append(f"trials are {trials}")
        hashes = self._ask("SELECT count(*), count(DISTINCT config_hash) FROM autotune_trials")
        if hashes and hashes[0][0] != hashes[0][1]:
            report.lost_trials.append("a config was tried twice")
        for number, outcome, reason in trials:
            attempts = self._attempts(number)
            for place, seen in enumerate(attempts, start=1):
                if seen.state in ("ended", "faulted"):
                    report.attempts.append(self._deal.fault(number, place).name)
            if outcome is not None:
                report.wrong_outcomes += wrong(self._deal, number, attempts, outcome, reason)
            if outcome == "measured":
                report.lost_trials += self._raw_files_lost(number)

    def _attempts(self, trial: int) -> list[Seen]:
        found = self._ask(
            "SELECT a.state, json_extract(a.result, '$.failure.kind') FROM autotune_attempts a "
            "JOIN autotune_trials t ON t.id = a.trial_id WHERE t.number = ? ORDER BY a.number",
            trial,
        )
        return [Seen(state=state, reason=reason) for state, reason in found]

    def _raw_files_lost(self, trial: int) -> list[str]:
        """The figures of a measured trial must be computable again."""
        found = self._ask(
            "SELECT a.directory FROM autotune_attempts a JOIN autotune_trials t ON t.id = a.trial_id "
            "WHERE t.number = ? AND a.state = 'ended'",
            trial,
        )
        lost = []
        for name in ("level-throughput.jsonl.gz", "level-ttft.jsonl.gz"):
            try:
                file = self._folder / found[0][0] / name
                with gzip.open(file) as records:
                    records.read()
            except (OSError, EOFError, IndexError) as error:
                lost.append(f"trial {trial}: {name}: {error}")
        return lost

    def _look_at_database(self) -> None:
        found = self.report.integrity_failures
        for check, good in (("integrity_check", [("ok",)]), ("foreign_key_check", [])):
            said = self._ask(f"PRAGMA {check}")
            if said != good:
                found.append(f"{check}: {said[:3]}")
        if self._ask("SELECT id FROM autotune_attempts WHERE state = 'open'"):
            found.append("an attempt is still open")
        theirs = self._ask("SELECT number, state FROM trials ORDER BY number")
        if [row[0] for row in theirs] != list(range(TRIALS)) or any(row[1] == "RUNNING" for row in theirs):
            found.append(f"Optuna's trials are {theirs}")
        for number in range(TRIALS):
            moves = self._ask(
                "SELECT m.before, m.event, m.after FROM autotune_transitions m "
                "JOIN autotune_attempts a ON a.id = m.attempt_id JOIN autotune_trials t ON t.id = a.trial_id "
                "WHERE t.number = ? ORDER BY a.number, m.id",
                number,
            )
            found += _story_faults(number, moves)

    def _phase(self) -> str | None:
        found = self._ask("SELECT after FROM autotune_transitions ORDER BY id DESC LIMIT 1")
        return str(found[0][0]) if found else None

    def _ask(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Read beside the program, empty while that cannot be; once the program is over whatever fails is told."""
        try:
            if self._connection is None:
                if not self._database.exists():
                    return []
                self._connection = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True, timeout=20)
            with closing(self._connection.execute(query, values)) as rows:
                return rows.fetchall()
        except sqlite3.OperationalError as error:
            if self._over:
                self.report.integrity_failures.append(f"{query[:40]}: {error}")
            return []


def _story_faults(trial: int, moves: list[tuple[Any, ...]]) -> list[str]:
    """What is wrong with the stored moves of a trial's life."""
    told = [Transition(before=State(b), event=Event(e), after=State(a)) for b, e, a in moves]
    try:
        life = Life.of(told)
    except IllegalMove as error:
        return [f"trial {trial}: {error}"]
    same = [(move.before, move.after) for move in life.story] == [(move.before, move.after) for move in told]
    return [] if same and life.state is State.DONE else [f"trial {trial}: its story does not lead to its end"]


def _named(pids: list[int]) -> str:
    names = []
    for pid in pids:
        with suppress(OSError):
            names.append(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")[:60].decode(errors="replace"))
    return ", ".join(names)
