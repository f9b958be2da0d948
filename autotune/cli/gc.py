"""`autotune gc`: what studies have left behind and may be deleted."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, Storage, StudiesDir
from autotune.cli.surroundings import places_of
from autotune.node.machine import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.engine.flag_cache import CachedAnswer
    from autotune.retention import Part, RetentionPlan, Shared, StudyFacts
    from autotune.store.folder import LockHolder
    from autotune.store.gate_files import GateFile
    from autotune.store.places import Places
    from autotune.store.raw_files import RawFile
    from autotune.store.repository import Store
    from autotune.store.study_record import PromotionRecord, StudyRecord

SHOWN_LOST = 20


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("gc")(gc)


def gc(
    study: Annotated[list[str] | None, typer.Argument(help="Only these studies; default: all.")] = None,
    older_than: Annotated[str, typer.Option(help="Only what is older: a number and s, m, h, d or w.")] = "30d",
    raw: Annotated[bool, typer.Option("--raw", help="Request records of load levels.")] = False,
    logs: Annotated[bool, typer.Option("--logs", help="Server logs.")] = False,
    leftovers: Annotated[
        bool,
        typer.Option(
            "--leftovers",
            help="Files of attempts that were interrupted or spoilt, drafts, and temporary folders of servers that "
            "were killed with everything that looks after them.",
        ),
    ] = False,
    flag_caches: Annotated[
        bool, typer.Option("--flag-caches", help="What vLLM versions no longer used answered to --help.")
    ] = False,
    calibrations: Annotated[
        bool,
        typer.Option("--calibrations", help="What studies learnt of nodes under vLLM versions that are gone."),
    ] = False,
    compile_caches: Annotated[
        bool, typer.Option("--compile-caches", help="Compiled code that no server used since.")
    ] = False,
    gates: Annotated[
        bool,
        typer.Option("--gates", help="Request records and logs of verifications that no promotion rests on."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete; without it only the list is shown.")] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """List what may be deleted of what studies left behind, and delete it with --yes.

    Without any of --raw, --logs, --leftovers, --flag-caches, --calibrations, --compile-caches and --gates all are
    meant. Never deleted: rows of the database, files of the baseline, of the front, of the pick and of promoted trials,
    the verdicts of verifications (gate.json), and anything of a study that is running.
    """
    from autotune.cli.stores import opened
    from autotune.engine.flag_cache import cached_answers
    from autotune.errors import StorageError
    from autotune.retention import Part, parse_age, plan_retention

    age = parse_age(older_than)
    asked = (raw, logs, leftovers, flag_caches, calibrations, compile_caches, gates)
    chosen = [part for part, wanted in zip(Part, asked, strict=True) if wanted]
    places = places_of(studies_dir, storage)
    now = datetime.now(UTC)

    def plan_of(facts: list[StudyFacts], versions: set[str]) -> RetentionPlan:
        # A study that is named says nothing about caches, which all studies share.
        answers = () if study else cached_answers(cache_dir(os.environ))
        return plan_retention(
            facts,
            answers,
            used_versions=versions,
            parts=chosen or tuple(Part),
            now=now,
            older_than=age,
            shared=() if study else _shared(cache_dir(os.environ)),
        )

    if places.storage is None and not study and not Path(places.database).exists():
        plan = plan_of([], set())
        done = _delete_answers(plan) if yes else None
    else:
        with opened(places, (study or [""])[0]) as store:
            records = store.studies()
            named = [store.study(name) for name in dict.fromkeys(study)] if study else records
            versions = {one.identity.get("vllm_version", "") for one in records}
            plan = plan_of([_facts(store, one, places) for one in named], versions)
            done = _delete(plan, store, places, lambda facts: plan_of([facts], versions)) if yes else None
    if as_json:
        typer.echo(json.dumps(_document(plan, done, older_than), indent=2))
    else:
        _print(plan, done)
    if done is not None and done.errors:
        raise StorageError(
            f"{len(done.deleted)} of {_count(plan)} files were deleted; the first that could not be: {done.errors[0]}",
            hint="Make the studies folder writable, then run the same command again.",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was deleted; studies that somebody runs meanwhile; what could not be deleted and why."""

    deleted: tuple[str, ...] = ()
    size_bytes: int = 0
    busy: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


def _facts(store: Store, study: StudyRecord, places: Places, me: LockHolder | None = None) -> StudyFacts:
    """What decides about the files of one study, as it is now; `me` may hold its lock."""
    from autotune.retention import StudyFacts, protected_trials
    from autotune.search.asked import asked_lossy, asked_rule, asked_slo
    from autotune.search.pareto import front_of, pick
    from autotune.store.gate_files import list_gate_files
    from autotune.store.raw_files import list_raw_files

    trials = store.trials(study.name)
    chosen = pick(
        trials, rule=asked_rule(study.spec, None), slo=asked_slo(study.spec, None), lossy=asked_lossy(study.spec)
    )
    files = list_raw_files(places.root, study.name)
    gate_files = list_gate_files(places.root, study.name)
    promotions = store.promotions(study.name)
    return StudyFacts(
        name=study.name,
        running=bool(files or gate_files) and places.folder(study.name).holder() not in (None, me),
        protected=protected_trials(
            trials,
            front=front_of(trials),
            pick=None if chosen is None else chosen.number,
            promoted=[promotion.trial for promotion in promotions],
        ),
        attempts=tuple(attempt for trial in trials for attempt in store.attempts(study.name, trial.number)),
        files=files,
        gate_files=gate_files,
        promoted_gates=frozenset(folder for promotion in promotions for folder in _gates_of(promotion)),
    )


def _gates_of(promotion: PromotionRecord) -> Iterator[str]:
    """The folders of the verification that a promotion rests on; none where it was skipped."""
    gate = promotion.details.get("gate")
    launches = gate.get("launches") if isinstance(gate, dict) else None
    for launch in launches if isinstance(launches, list) else ():
        yield Path(str(launch["directory"])).parent.name


def _delete(
    plan: RetentionPlan, store: Store, places: Places, plan_again: Callable[[StudyFacts], RetentionPlan]
) -> Done:
    """Delete what is planned, study by study under its lock, so that none begins to run meanwhile."""
    import psutil

    from autotune.errors import StorageError, StudyBusy
    from autotune.store.folder import HeldFor, LockHolder
    from autotune.store.gate_files import GateFile, delete_gate_file
    from autotune.store.raw_files import delete_raw_file

    def forget(one: RawFile | GateFile) -> bool:
        return delete_gate_file(places.root, one) if isinstance(one, GateFile) else delete_raw_file(places.root, one)

    me = LockHolder(pid=os.getpid(), started=psutil.Process().create_time(), held_for=HeldFor.CLEARING_UP)
    deleted: list[RawFile | GateFile] = []
    busy: list[str] = []
    errors: list[str] = []
    for name in dict.fromkeys(file.study for file in _of_studies(plan)):
        listed = {file.path for file in _of_studies(plan) if file.study == name}
        try:
            with places.folder(name).locked(me):
                # Once more: a trial may have joined the front since the list was made.
                still = _of_studies(plan_again(_facts(store, store.study(name), places, me)))
                for file in (one for one in still if one.path in listed):
                    try:
                        deleted += [file] if forget(file) else []
                    except StorageError as error:
                        errors.append(error.message)
        except StudyBusy:
            busy.append(name)
        except StorageError as error:  # the lock: the study's folder cannot be written
            errors.append(error.message)
    caches = _delete_answers(plan)
    return Done(
        deleted=(*(file.path for file in deleted), *caches.deleted),
        size_bytes=sum(file.size_bytes for file in deleted) + caches.size_bytes,
        busy=tuple(busy),
        errors=(*errors, *caches.errors),
    )


def _count(plan: RetentionPlan) -> int:
    return len(plan.files) + len(plan.gates) + len(plan.answers) + len(plan.shared)


def _of_studies(plan: RetentionPlan) -> tuple[RawFile | GateFile, ...]:
    return (*(file for file, _ in plan.files), *plan.gates)


def _shared(folder: Path) -> tuple[Shared, ...]:
    """Calibrations and compiled code of the cache folder, and temporary folders of servers."""
    from autotune.engine.compile_cache import kept_caches
    from autotune.engine.private_folders import left_folders
    from autotune.retention import Part, Shared
    from autotune.store.calibrations import kept_calibrations

    found = [
        Shared(
            path=one.path,
            part=Part.CALIBRATIONS,
            size_bytes=one.size_bytes,
            used_at=one.modified_at,
            version=one.place.vllm if one.place else None,
            group=(one.place.machine, one.place.gpu) if one.place else (),
        )
        for one in kept_calibrations(folder)
    ]
    found += [
        Shared(
            path=one.path,
            part=Part.COMPILE_CACHES,
            size_bytes=one.size_bytes,
            used_at=one.used_at,
            in_use=one.in_use,
        )
        for one in kept_caches(folder)
    ]
    found += [
        Shared(path=one.path, part=Part.LEFTOVERS, size_bytes=one.size_bytes, used_at=one.used_at, in_use=one.in_use)
        for one in left_folders(os.environ)
    ]
    return tuple(found)


def _forget_shared(one: Shared) -> bool:
    """Whether it was there and is gone now.

    Raises:
        StorageError: it cannot be deleted.
    """
    from autotune.engine.compile_cache import KeptCache, forget_cache
    from autotune.engine.private_folders import forget_folder
    from autotune.retention import Part
    from autotune.store.calibrations import KeptCalibration, forget_calibration

    if one.part is Part.LEFTOVERS:
        return forget_folder(one.path)
    if one.part is Part.CALIBRATIONS:
        kept = KeptCalibration(path=one.path, place=None, size_bytes=one.size_bytes, modified_at=one.used_at)
        return forget_calibration(kept)
    return forget_cache(KeptCache(path=one.path, size_bytes=one.size_bytes, used_at=one.used_at, in_use=False))


def _delete_answers(plan: RetentionPlan) -> Done:
    """Delete what studies share."""
    from autotune.engine.flag_cache import forget_answer
    from autotune.errors import StorageError
    from autotune.retention import Shared

    deleted: list[CachedAnswer | Shared] = []
    errors = []
    every: tuple[CachedAnswer | Shared, ...] = (*plan.answers, *plan.shared)
    for one in every:
        try:
            gone = _forget_shared(one) if isinstance(one, Shared) else forget_answer(one)
            deleted += [one] if gone else []
        except StorageError as error:
            errors.append(error.message)
    return Done(
        deleted=tuple(str(one.path) for one in deleted),
        size_bytes=sum(one.size_bytes for one in deleted),
        errors=tuple(errors),
    )


def _document(plan: RetentionPlan, done: Done | None, older_than: str) -> dict[str, Any]:
    return {
        "schema": 1,
        "dry_run": done is None,
        "older_than": older_than,
        "files": [
            {"path": file.path, "part": part, "study": file.study, "trial": file.trial, "bytes": file.size_bytes}
            for file, part in plan.files
        ],
        "gates": [
            {"path": file.path, "study": file.study, "trial": file.trial, "bytes": file.size_bytes}
            for file in plan.gates
        ],
        "flag_caches": [
            {"path": str(answer.path), "vllm_version": answer.version, "bytes": answer.size_bytes}
            for answer in plan.answers
        ],
        "shared": [
            {"path": str(one.path), "part": one.part, "vllm_version": one.version, "bytes": one.size_bytes}
            for one in plan.shared
        ],
        "bytes": plan.size_bytes,
        "kept": [{"reason": kept.reason, "files": kept.files, "bytes": kept.size_bytes} for kept in plan.kept],
        "lost": [{"study": one.study, "trial": one.trial, "levels": list(one.levels)} for one in plan.lost],
        "deleted": None if done is None else list(done.deleted),
        "deleted_bytes": None if done is None else done.size_bytes,
        "busy": [] if done is None else list(done.busy),
        "errors": [] if done is None else list(done.errors),
    }


def _print(plan: RetentionPlan, done: Done | None) -> None:
    from autotune.cli.console import output_console
    from autotune.report.grid import add, column, grid, print_to, titled
    from autotune.units import format_bytes

    console = output_console()
    table = grid()
    for head, right in (("study", False), ("what", False), ("trials", False), ("files", True), ("size", True)):
        column(table, head, right=right)
    for study, part, files in _groups(plan):
        trials = ", ".join(str(trial) for trial in sorted({file.trial for file in files}))
        add(table, study, part, trials, str(len(files)), format_bytes(sum(file.size_bytes for file in files)))
    for name in dict.fromkeys(file.study for file in plan.gates):
        own_files = [file for file in plan.gates if file.study == name]
        tried = ", ".join(str(trial) for trial in sorted({file.trial for file in own_files}))
        size = sum(file.size_bytes for file in own_files)
        add(table, name, "gates", tried, str(len(own_files)), format_bytes(size))
    if plan.answers:
        size = sum(answer.size_bytes for answer in plan.answers)
        add(table, "-", "flag-caches", "-", str(len(plan.answers)), format_bytes(size))
    for part in dict.fromkeys(one.part for one in plan.shared):
        own = [one for one in plan.shared if one.part is part]
        add(table, "-", part, "-", str(len(own)), format_bytes(sum(one.size_bytes for one in own)))
    if _count(plan):
        print_to(console, titled("May be deleted", table))
    kept = grid()
    for head, right in (("kept", False), ("files", True), ("size", True)):
        column(kept, head, right=right)
    for one in plan.kept:
        add(kept, one.reason, str(one.files), format_bytes(one.size_bytes))
    if plan.kept:
        print_to(console, titled("Stays", kept))
    for line in _closing_lines(plan, done):
        typer.echo(line)


def _groups(plan: RetentionPlan) -> Iterator[tuple[str, Part, list[RawFile]]]:
    """The files by study and part, in the order of the plan."""
    for study, part in dict.fromkeys((file.study, part) for file, part in plan.files):
        yield study, part, [file for file, own in plan.files if (file.study, own) == (study, part)]


def _closing_lines(plan: RetentionPlan, done: Done | None) -> Iterator[str]:
    from autotune.units import format_bytes, plural

    total = _count(plan)
    if plan.lost:
        verb = "can then no longer" if done is None else "can no longer"
        yield f"Figures that {verb} be computed again from their requests (they stay in the database):"
        for one in plan.lost[:SHOWN_LOST]:
            yield f"  {one.study} trial {one.trial}: {', '.join(one.levels)}"
        if len(plan.lost) > SHOWN_LOST:
            yield f"  and {plural(len(plan.lost) - SHOWN_LOST, 'more trial')}; --json lists all"
    if not total:
        yield "Nothing to delete."
    elif done is None:
        yield f"{plural(total, 'file')}, {format_bytes(plan.size_bytes)}. Nothing was deleted; --yes deletes."
    else:
        yield f"Deleted {len(done.deleted)} of {plural(total, 'file')}, {format_bytes(done.size_bytes)}."
        for name in done.busy:
            yield f"Study {name} is running meanwhile; its files were left alone."
