"""Chaos, round after round: misbehaving servers and killed tuners; ends with 1 when anything was left, lost or wrong.

`python -m benchmarks.chaos [--rounds N] [--seed S] [--jobs J] [--only ROUND] [--json]`

Each round is a study of two trials on child servers (the simulated vLLM over HTTP) in a folder of its own. What its
attempts meet and when its tuner is killed with -9 follows from seed and number (dealing.py); `--only` plays one round
again. A round is over when the study has reached its end; then:

| figure | counts |
|---|---|
| orphans | processes of the round that are still there 3 s later, or 3 s after a kill that nothing followed |
| leases_left | lock files that somebody still holds |
| lost_trials | finished trials that changed, went, or came twice; missing ones; raw records that cannot be read |
| wrong_outcomes | attempts or trials that ended otherwise than what was dealt to them makes them |
| hangs | runs of the tuner that did not end within their deadline |
| integrity_failures | a damaged database, open attempts, an illegal story, a projection that is behind |
| strangers_hit | processes of others (named as a vLLM engine, taking ports, computing on a GPU) that were ended |
| files_left | files in the round's temporary directory, where each server leaves what vLLM leaves |
| collisions | servers that were launched on a GPU which somebody else still had |

A round that shows one of these while the machine was held up (`is_held_up`) shows nothing, and is played again.
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
from benchmarks.chaos.rounds import HELD_UP_S, SLOWED_DOWN, Pace, Report, Round

TUNER_NEEDS = (
    "autotune.cli.main", "autotune.cli.plan_text", "autotune.review.views", "autotune.node.nvml_probe",
    "autotune.planning.explaining", "autotune.report.progress", "autotune.report.tables", "autotune.session",
    "huggingface_hub.file_download", "numpy.ma", "numpy.random", "optuna.storages._rdb.models",
    "sqlalchemy.dialects.sqlite", "uvloop",
)  # fmt: skip
"""Modules that a tuner would import for itself, half of what its start takes."""

MOST_AGAIN = 2
"""Times that a round is played again because the machine was held up."""

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
        numbers = list(range(args.rounds)) if args.only is None else [args.only]
        jobs = max(1, min(args.jobs, len(numbers)))
        pace = _pace(root, jobs)
        reports = _play(root, pace, [deal(args.seed, number) for number in numbers], jobs)
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
        "jobs": jobs,
        "cores": len(os.sched_getaffinity(0)),
    }
    print(json.dumps(document, indent=2) if args.json else as_text(document))
    return 1 if any(document[name] for name in VIOLATIONS) else 0


def _import_all() -> None:
    """What every tuner needs, once: they are forked from here."""
    for name in TUNER_NEEDS:
        importlib.import_module(name)


def _pace(root: Path, jobs: int) -> Pace:
    """How long a healthy start takes with so many rounds at once: from rounds in which nothing happens.

    They also fill the caches that all rounds share.
    """
    (root / "cache").mkdir()
    quiet = [Deal(number=-1 - job, faults=((HEALTHY,), (HEALTHY,)), kills=()) for job in range(jobs)]
    reports = _play(root, Pace(start_s=10.0), quiet, jobs)
    problems = [text for report in reports for name in VIOLATIONS for text in getattr(report, name)]
    if problems or len(reports) < jobs:
        raise SystemExit(f"a round without faults and kills fails: {'; '.join(problems) or 'it came to no report'}")
    return Pace(start_s=max(report.slowest_start_s for report in reports))


def _play(root: Path, pace: Pace, deals: Sequence[Deal], jobs: int) -> list[Report]:
    """All rounds, `jobs` at a time, each job in a process of its own."""
    files = [root / f"job-{job}.jsonl" for job in range(jobs)]
    children = []
    for job, file in enumerate(files):
        file.unlink(missing_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                _job(root, pace, deals[job::jobs], file)
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


def _job(root: Path, pace: Pace, deals: Sequence[Deal], file: Path) -> None:
    with file.open("a", encoding="utf-8") as reports:
        for dealt in deals:
            for time_around in range(1 + MOST_AGAIN):
                report = _round(root / f"round-{dealt.number}-{time_around}", root / "cache", pace, dealt)
                report.played_again = time_around
                bad = _violations(report)
                again = bool(bad) and is_held_up(report, pace) and time_around < MOST_AGAIN
                told = "; ".join(bad) if bad else "well"
                kills = ", ".join(report.kills) or "none"
                end = "; the machine was held up, played again" if again else ""
                print(
                    f"round {report.number}: {report.seconds:.1f} s, killed in: {kills}; {told}{end}", file=sys.stderr
                )
                if not again:
                    break
            reports.write(json.dumps(asdict(report)) + "\n")
            reports.flush()


def _round(folder: Path, cache: Path, pace: Pace, dealt: Deal) -> Report:
    folder.mkdir()
    strangers = Strangers(folder / "door.sock")
    try:
        return Round(dealt, folder, cache, pace, strangers).play()
    finally:
        strangers.close()


def _violations(report: Report) -> list[str]:
    return [f"{name}: {text}" for name in VIOLATIONS for text in getattr(report, name)]


def is_held_up(report: Report, pace: Pace) -> bool:
    """Whether the machine was so much slower than when its pace was taken that deadlines meant nothing."""
    return report.held_up_s > HELD_UP_S or report.slowest_start_s > SLOWED_DOWN * pace.start_s


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
    found["played_again"] = sum(report.played_again for report in reports)
    found["told"] = [f"round {report.number}, {text}" for report in reports for text in _violations(report)]
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
        f"{document['cores']} cores, where a healthy start then takes {document['healthy_start_s']} s; "
        f"{document['played_again']} were played again",
    ]
    for title, key in (("attempts that met", "by_kind"), ("tuners killed in", "kills")):
        lines += ["", title, *(f"  {name:34}{count:6}" for name, count in document[key].items())]
    lines += ["", "violations", *(f"  {name:34}{document[name]:6}" for name in VIOLATIONS)]
    return "\n".join([*lines, *(f"  {text}" for text in document["told"])])


if __name__ == "__main__":
    sys.exit(main())
