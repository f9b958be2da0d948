"""Chaos, round after round: misbehaving servers and killed tuners; ends with 1 when anything was left, lost or wrong.

`python -m benchmarks.chaos [--rounds N] [--seed S] [--jobs J] [--only ROUND] [--json]`

Each round is a study of two trials on child servers (the simulated vLLM over HTTP) in a folder of its own. What its
attempts meet and when its tuner is killed with -9 follows from seed and number (dealing.py); `--only` plays one round
again. A round is over when the study has reached its end; then:

| figure | counts |
|---|---|
| orphans | processes of the round that are still there 30 s later, or 30 s after a kill that nothing followed |
| leases_left | lock files that somebody still holds |
| lost_trials | finished trials that changed, went, or came twice; missing ones; raw records that cannot be read |
| wrong_outcomes | attempts or trials that ended otherwise than what was dealt to them makes them |
| hangs | runs of the tuner that did not end within their deadline |
| integrity_failures | a damaged database, open attempts, an illegal story, a projection that is behind |
| strangers_hit | processes of others (named as a vLLM engine, taking ports, computing on a GPU) that were ended |
| files_left | files in the round's temporary directory, where each server leaves what vLLM leaves |
| collisions | servers that were launched on a GPU which somebody else still had |
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from benchmarks.chaos.dealing import HEALTHY, Deal, deal
from benchmarks.chaos.processes import Strangers
from benchmarks.chaos.rounds import Pace, Report, Round

TUNER_NEEDS = (
    "autotune.cli.main", "autotune.cli.plan_text", "autotune.review.views", "autotune.node.nvml_probe",
    "autotune.planning.explaining", "autotune.report.progress", "autotune.report.tables", "autotune.session",
    "huggingface_hub.file_download", "numpy.ma", "numpy.random", "optuna.storages._rdb.models",
    "sqlalchemy.dialects.sqlite", "uvloop",
)  # fmt: skip
"""Modules that a tuner would import for itself, half of what its start takes."""

ROUND_GOAL_S = 10.0
"""What a round may take where it has a core; several at once on fewer cores wait for each other."""

VIOLATIONS = (
    "orphans", "leases_left", "lost_trials", "wrong_outcomes", "hangs", "integrity_failures", "strangers_hit",
    "files_left", "collisions",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Play, print, and say by the status whether all was well."""
    parser = argparse.ArgumentParser(prog="benchmarks.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=4, help="rounds at once; they mostly wait")
    parser.add_argument("--only", type=int, help="play this round alone, and keep its folder")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    _import_all()
    root = Path(tempfile.mkdtemp(prefix="chaos-")).resolve()
    begun = time.monotonic()
    try:
        pace = _pace(root)
        numbers = list(range(args.rounds)) if args.only is None else [args.only]
        reports = _play(root, pace, args.seed, numbers, max(1, args.jobs))
    finally:
        if args.only is None:
            shutil.rmtree(root, ignore_errors=True)
        else:
            print(f"kept: {root}", file=sys.stderr)
    document = summary(args.seed, reports, missing=len(numbers) - len(reports))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    document |= {
        "seconds": round(time.monotonic() - begun, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),
        "healthy_start_s": round(pace.start_s, 2),
        "jobs": args.jobs,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(document, indent=2) if args.json else as_text(document))
    return 1 if any(document[name] for name in VIOLATIONS) else 0


def _import_all() -> None:
    """What every tuner needs, once: they are forked from here."""
    for name in TUNER_NEEDS:
        importlib.import_module(name)


def _pace(root: Path) -> Pace:
    """A round in which nothing happens: how long a healthy start takes, and the caches that all rounds share."""
    quiet = Deal(number=-1, faults=((HEALTHY,), (HEALTHY,)), kills=())
    folder = root / "quiet"
    folder.mkdir()
    (root / "cache").mkdir()
    strangers = Strangers(root / "quiet.sock")
    try:
        played = Round(quiet, folder, root / "cache", Pace(start_s=10.0), strangers)
        report = played.play()
    finally:
        strangers.close()
    problems = [text for name in VIOLATIONS for text in getattr(report, name)]
    if problems:
        raise SystemExit(f"a round without faults and kills fails: {'; '.join(problems)}")
    return Pace(start_s=played.slowest_start_s)


def _play(root: Path, pace: Pace, seed: int, numbers: list[int], jobs: int) -> list[Report]:
    """All rounds, `jobs` at a time, each job in a process of its own."""
    files = [root / f"job-{job}.jsonl" for job in range(jobs)]
    children = []
    for job, file in enumerate(files):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _job(root, pace, seed, numbers[job::jobs], file)
                status = 0
            except Exception as error:  # noqa: BLE001  # the outermost shell of this process
                print(f"job {job}: {type(error).__name__}: {error}", file=sys.stderr)
            finally:
                os._exit(status)
        children.append(pid)
    for pid in children:
        os.waitpid(pid, 0)
    lines = [line for file in files if file.exists() for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted((Report(**json.loads(line)) for line in lines), key=lambda report: report.number)


def _job(root: Path, pace: Pace, seed: int, numbers: list[int], file: Path) -> None:
    with file.open("a", encoding="utf-8") as reports:
        for number in numbers:
            folder = root / f"round-{number}"
            folder.mkdir()
            strangers = Strangers(root / f"{number}.sock")
            try:
                report = Round(deal(seed, number), folder, root / "cache", pace, strangers).play()
            finally:
                strangers.close()
            reports.write(json.dumps(asdict(report)) + "\n")
            reports.flush()
            bad = [f"{name}: {text}" for name in VIOLATIONS for text in getattr(report, name)]
            told = "; ".join(bad) if bad else "well"
            kills = ", ".join(report.kills) or "none"
            print(f"round {number}: {report.seconds:.1f} s, killed in: {kills}; {told}", file=sys.stderr, flush=True)


def summary(seed: int, reports: Sequence[Report], *, missing: int = 0) -> dict[str, Any]:
    """Counts over all rounds; `missing` rounds came to no report, which counts as hangs."""
    by_kind = Counter(name for report in reports for name in report.attempts)
    kills = Counter(phase for report in reports for phase in report.kills)
    found: dict[str, Any] = {"rounds": len(reports), "seed": seed, "by_kind": dict(sorted(by_kind.items()))}
    found["kills"] = dict(sorted(kills.items()))
    for name in VIOLATIONS:
        assert name in {one.name for one in fields(Report)}
        found[name] = sum(len(getattr(report, name)) for report in reports)
    found["hangs"] += missing
    slowest = max(reports, key=lambda report: report.seconds, default=None)
    found["slowest_round_s"] = None if slowest is None else round(slowest.seconds, 1)
    found["slowest_round"] = None if slowest is None else slowest.number
    found["rounds_over_goal"] = sum(report.seconds > ROUND_GOAL_S for report in reports)
    found["told"] = [
        f"round {report.number}, {name}: {text}"
        for report in reports
        for name in VIOLATIONS
        for text in getattr(report, name)
    ]
    return found


def as_text(document: dict[str, Any]) -> str:
    """The table."""
    head = (
        f"{document['rounds']} rounds, seed {document['seed']}, {document['seconds']} s ({document['cpu_s']} s of CPU)"
    )
    lines = [
        head,
        f"the slowest round, {document['slowest_round']}, took {document['slowest_round_s']} s; "
        f"{document['rounds_over_goal']} took more than {ROUND_GOAL_S:g} s, with {document['jobs']} at once on "
        f"{document['cores']} cores, where a healthy start alone takes {document['healthy_start_s']} s",
    ]
    for title, key in (("attempts that met", "by_kind"), ("tuners killed in", "kills")):
        lines += ["", title, *(f"  {name:34}{count:6}" for name, count in document[key].items())]
    lines += ["", "violations", *(f"  {name:34}{document[name]:6}" for name in VIOLATIONS)]
    return "\n".join([*lines, *(f"  {text}" for text in document["told"])])


if __name__ == "__main__":
    sys.exit(main())
