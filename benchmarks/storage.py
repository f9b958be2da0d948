"""Storage under stress: `python -m benchmarks.storage [--json] [--trials 10000] [--processes 8] [--each 50]`.

* A study of `--trials` trials in one file (records of a real study with their figures moved about): seconds that
  `autotune list` and `autotune pareto` take, the whole process each time, the least and the median of some.
* `--processes` processes that write trials to one study of one file, `--each` each, while a reader asks as the Optuna
  dashboard does: what was lost or written twice, errors, how long a verb took, and what SQLite says of the file.

It ends with 1 where a trial was lost or written twice, a verb failed, or the file is damaged.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from autotune.life import Event, State, Transition
from autotune.records import ClockKind, Config, EngineKind, Origin, TrialResult
from autotune.store.projection import Projection
from autotune.store.repository import Store
from autotune.store.study_record import StudySpec
from benchmarks.large_study import STUDY, TEMPLATE, make_large_study

LIMITS_S = {"list_s": 0.5, "pareto_s": 1.5}
"""What the commands may take on a study of 10,000 trials, by the project's own goal."""


def main() -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--each", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="autotune-storage-") as folder:
        found = {
            "schema": 1,
            **measure_commands(Path(folder), args.trials, args.repeats),
            **measure_writers(Path(folder), args.processes, args.each),
        }
    if args.json:
        print(json.dumps(found, indent=2))
        return int(not is_whole(found))
    print("\n".join(told(found, args.repeats)))
    return int(not is_whole(found))


def told(found: Mapping[str, Any], repeats: int) -> list[str]:
    """The lines of the table."""
    lines = [f"{found['trials']:,} trials in a file of {found['file_bytes'] / 1e6:.0f} MB; least of {repeats}, seconds"]
    for name in ("list_s", "status_s", "pareto_s", "pareto_slo_s"):
        limit = LIMITS_S.get(name)
        goal = "" if limit is None else f"  goal {limit:g}: {'met' if found[name] <= limit else 'missed'}"
        lines.append(f"  {name:14}{found[name]:7.2f}  median {found[f'{name}_median']:.2f}{goal}")
    lines.append(
        f"{found['processes']} processes, {found['written']} trials in {found['writing_s']:.1f} s beside a reader "
        f"({found['reads']} reads): {found['lost']} lost, {found['duplicated']} twice, {len(found['errors'])} errors; "
        f"a verb takes {found['verb_p50_ms']:.1f} ms (p50), {found['verb_p99_ms']:.0f} ms (p99); "
        f"integrity_check: {found['integrity']}"
    )
    return lines


def is_whole(found: Mapping[str, Any]) -> bool:
    """Whether the writers lost nothing, wrote nothing twice, met no error, and left a file that SQLite takes."""
    return not (found["lost"] or found["duplicated"] or found["errors"]) and found["integrity"] == "ok"


def measure_commands(folder: Path, trials: int, repeats: int) -> dict[str, Any]:
    """Seconds of whole processes."""
    path = folder / "large.db"
    make_large_study(path, trials)
    found: dict[str, Any] = {"trials": trials, "file_bytes": path.stat().st_size}
    commands = {
        "list_s": ("list",),
        "status_s": ("status",),
        "pareto_s": ("pareto", STUDY),
        "pareto_slo_s": ("pareto", STUDY, "--slo", "ttft_p95<=300ms,tpot_p95<=100ms"),
    }
    for name, words in commands.items():
        times = [_seconds(words, path) for _ in range(repeats)]
        found |= {name: min(times), f"{name}_median": statistics.median(times)}
    return found


def _seconds(words: Sequence[str], database: Path) -> float:
    command = [
        sys.executable,
        "-m",
        "autotune",
        *words,
        "--storage",
        str(database),
        "--studies-dir",
        str(database.parent),
    ]
    begun = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


SPEC = StudySpec(
    name="shared",
    seed=0,
    engine=EngineKind.SIMULATED,
    simulated=True,
    clock=ClockKind.VIRTUAL,
    target_trials=1,
    identity={"model": "m", "workload": "w", "space": "s", "node": "n", "vllm_version": "v"},
)


MOVES = tuple(
    Transition(before=before, event=event, after=after)
    for before, event, after in (
        (State.WAITING, Event.LAUNCH, State.LAUNCHING),
        (State.LAUNCHING, Event.READY, State.WARMING),
        (State.WARMING, Event.WARM, State.MEASURING),
        (State.MEASURING, Event.STOP, State.STOPPING),
    )
)


def measure_writers(folder: Path, processes: int, each: int) -> dict[str, Any]:
    """What several processes do to one study."""
    path = folder / "shared.db"
    with Store.open(TEMPLATE) as store:
        result = next(trial.result for trial in store.trials(STUDY) if trial.number > 0)
    with Store.open(path) as store:
        store.create_or_resume_study(SPEC)
    assert result is not None
    context = multiprocessing.get_context("spawn")
    said, stop = context.Queue(), context.Event()
    writers = [context.Process(target=_write, args=(path, place, each, result, said)) for place in range(processes)]
    reader = context.Process(target=_read, args=(path, said, stop))
    begun = time.perf_counter()
    for process in (reader, *writers):
        process.start()
    told = [said.get(timeout=600) for _ in writers]
    writing_s = time.perf_counter() - begun
    stop.set()
    reads = said.get(timeout=60)
    for process in (reader, *writers):
        process.join()
    numbers = sorted(number for one in told for number in one["numbers"])
    verbs = sorted(ms for one in told for ms in one["verbs_ms"])
    with Store.open(path) as store:
        finished = [trial.number for trial in store.trials("shared") if trial.result is not None]
    raw = sqlite3.connect(path)
    integrity = raw.execute("PRAGMA integrity_check").fetchone()[0]
    raw.close()
    return {
        "processes": processes,
        "written": len(finished),
        "lost": len(set(numbers) - set(finished)) + processes * each - len(numbers),
        "duplicated": len(numbers) - len(set(numbers)),
        "errors": [error for one in told for error in one["errors"]] + reads["errors"],
        "reads": reads["reads"],
        "writing_s": writing_s,
        "verb_p50_ms": verbs[len(verbs) // 2],
        "verb_p99_ms": verbs[int(len(verbs) * 0.99)],
        "integrity": integrity,
    }


def _write(path: Path, place: int, each: int, result: TrialResult, said: Any) -> None:
    numbers: list[int] = []
    verbs_ms: list[float] = []
    errors: list[str] = []
    with Store.open(path) as store:

        def timed(verb: Any, *words: Any, **more: Any) -> Any:
            begun = time.perf_counter()
            try:
                return verb(*words, **more)
            finally:
                verbs_ms.append((time.perf_counter() - begun) * 1000)

        for index in range(each):
            try:
                config = Config.of({"writer": place, "index": index})
                trial = timed(store.begin_trial, "shared", config=config, origin=Origin.SAMPLER, gpus=1)
                attempt = timed(store.begin_attempt, "shared", trial.number, directory=f"trial-{trial.number:04d}")
                for move in MOVES:
                    timed(
                        store.record_phase,
                        *("shared", trial.number, attempt, move),
                        at_utc=datetime.now(UTC),
                        elapsed_s=1.0,
                        clock=ClockKind.VIRTUAL,
                    )
                timed(store.finish_trial, "shared", trial.number, result)
                numbers.append(trial.number)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is counted and shown
                errors.append(f"{type(error).__name__}: {error}")
    said.put({"numbers": numbers, "verbs_ms": verbs_ms, "errors": errors, "pid": os.getpid()})


def _read(path: Path, said: Any, stop: Any) -> None:
    """As a dashboard: our lists, and Optuna's own view, which is brought up to date as a tuner would."""
    reads, errors = 0, []
    while not stop.is_set():
        try:
            with Store.open(path) as store:
                store.tallies()
                store.outlines("shared")
                if reads % 10 == 0:
                    with Projection.open(store) as projection:
                        projection.sync("shared")
        except Exception as error:  # noqa: BLE001 - as above
            errors.append(f"reader: {type(error).__name__}: {error}")
        reads += 1
        time.sleep(0.02)
    said.put({"reads": reads, "errors": errors})


if __name__ == "__main__":
    sys.exit(main())
