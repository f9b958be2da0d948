"""Operations that look at studies. Documents are those of the command line's `--json`, made by the same functions."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from autotune.report.compare import compare, comparison_document
from autotune.report.explained import explanation_document
from autotune.report.json_view import study_document, trial_document
from autotune.review.compared import side_of
from autotune.review.listing import study_row
from autotune.review.page import Part, page_part
from autotune.search.asked import asked_objective, asked_slo
from autotune.store.codec import encode
from autotune.store.listing import Tally
from autotune.web.asked import CompareQuery, FrontQuery, PagePath, PageQuery, StudyPath, TrialsQuery
from autotune.web.jobs import is_made_here, may_start
from autotune.web.route import Answer, Call
from autotune.web.service import Service, check_study_name

if TYPE_CHECKING:
    from autotune.store.repository import Store

SCHEMA = 1


async def list_studies(service: Service, call: Call) -> Answer:
    """Every study with its progress."""
    del call
    return Answer(document=await service.ask(lambda store: listing(service, store), empty=_none()))


def _none() -> dict[str, Any]:
    return {"schema": SCHEMA, "studies": []}


def listing(service: Service, store: Store) -> dict[str, Any]:
    """`autotune list --json`, with what the page follows studies by."""
    return {"schema": SCHEMA, "studies": rows(service, store)}


def rows(service: Service, store: Store, *, study: str | None = None) -> list[dict[str, Any]]:
    """One object a study; with `study` that one's alone, and nothing is counted of the others.

    Raises:
        UnknownName: there is no such study.
    """
    pulses, tallies = store.pulses(), store.tallies(None if study is None else [study])
    places, now = service.settings.places, service.now()
    found = []
    for one in store.studies() if study is None else [store.study(study)]:
        row = study_row(one, tallies.get(one.name, Tally()), places, store.attempts, now=now)
        pulse, job = pulses.get(one.name), service.queue.jobs.of_study(one.name)
        found.append(
            {
                **asdict(row),
                "created_at": one.created_at.isoformat(),
                "revision": pulse.revision if pulse else "",
                "job": job.id if job else None,
            }
        )
    return found


async def get_study(service: Service, call: Call) -> Answer:
    """A whole study: every trial, the front, the pick (`autotune pareto --json`)."""
    path: StudyPath = call.path
    asked: FrontQuery = call.query
    revision, raw = await service.study_document(
        ("study", asked.slo or "", asked.pick or ""),
        lambda store: study_document(service.view(store, path.name, slo=asked.slo, pick=asked.pick)),
        study=path.name,
    )
    return Answer(raw=raw, etag=revision)


_OF_FRONT = ("schema", "study", "simulated", "slo", "front", "baseline", "pick", "stable", "noise", "drift")


async def get_front(service: Service, call: Call) -> Answer:
    """The front, the baseline and the pick of a study, without all its trials."""
    path: StudyPath = call.path
    asked: FrontQuery = call.query

    def made(store: Store) -> dict[str, Any]:
        document = study_document(service.view(store, path.name, slo=asked.slo, pick=asked.pick))
        return {key: document[key] for key in _OF_FRONT}

    revision, raw = await service.study_document(("front", asked.slo or "", asked.pick or ""), made, study=path.name)
    return Answer(raw=raw, etag=revision)


async def list_trials(service: Service, call: Call) -> Answer:
    """Trials of a study in order of their numbers, some at a time."""
    path: StudyPath = call.path
    asked: TrialsQuery = call.query
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        view = service.view(store, path.name)
        wanted = [trial for trial in view.trials if asked.outcome is None or view.outcome(trial) == asked.outcome]
        rest = [trial for trial in wanted if trial.number > asked.after]
        shown = rest[: asked.limit]
        return {
            "trials": [trial_document(view, trial) for trial in shown],
            "total": len(wanted),
            "next": shown[-1].number if len(rest) > len(shown) else None,
        }

    return Answer(document=await service.ask(made))


async def get_times(service: Service, call: Call) -> Answer:
    """When each trial was begun and finished."""
    path: StudyPath = call.path
    check_study_name(path.name)
    times = await service.ask(lambda store: store.trial_times(path.name))
    return Answer(
        document={
            "trials": [
                {
                    "number": number,
                    "begun_at": begun.isoformat(),
                    "finished_at": finished.isoformat() if finished else None,
                }
                for number, (begun, finished) in enumerate(times)
            ]
        }
    )


async def get_page_part(service: Service, call: Call) -> Answer:
    """A part of what the page shows of a study: made for it, and changed with it."""
    path: PagePath = call.path
    asked: PageQuery = call.query

    def made(store: Store) -> dict[str, Any]:
        return page_part(path.part, store, store.study(path.name), service.settings.places, slo=asked.slo)

    slow = path.part is Part.LEARNED
    key = ("page", path.part, asked.slo or "")
    revision, raw = await service.study_document(key, made, study=path.name, slow=slow)
    return Answer(raw=raw, etag=revision)


async def get_summary(service: Service, call: Call) -> Answer:
    """What a study was asked, where it stands, and what may be done with it."""
    path: StudyPath = call.path
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        study, load = store.study(path.name), store.get_load_plan(path.name)
        (row,) = rows(service, store, study=path.name)
        slo = asked_slo(study.spec, None)
        return {
            **row,
            "seed": study.seed,
            "objective": str(asked_objective(study.spec)),
            "slo": str(slo) if slo else None,
            "load_plan": encode(load) if load else None,
            "identity": dict(study.identity),
        }

    document = await service.ask(made)
    can_start, why_not = may_start(service, path.name)
    started = {"made_here": is_made_here(service, path.name), "can_start": can_start, "why_not": why_not}
    return Answer(document={**document, **started})


async def get_explanation(service: Service, call: Call) -> Answer:
    """What a study has learnt (`autotune explain --json`)."""
    from autotune.planning.explaining import explain_study

    path: StudyPath = call.path

    def made(store: Store) -> dict[str, Any]:
        stored = store.study(path.name)
        trials, load = store.trials(path.name), store.get_load_plan(path.name)
        simulated = stored.simulated or any(trial.result.simulated for trial in trials if trial.result)
        found, doubts = explain_study(stored, trials, load)
        return explanation_document(found, study=path.name, simulated=simulated, doubts=doubts)

    revision, raw = await service.study_document(("explain",), made, study=path.name, slow=True)
    return Answer(raw=raw, etag=revision)


async def get_comparison(service: Service, call: Call) -> Answer:
    """Two configs: flags, figures, cost, and whether each difference is more than noise (`autotune compare --json`)."""
    asked: CompareQuery = call.query

    def made(store: Store) -> dict[str, Any]:
        a, b = (side_of(store, service.settings.places, name) for name in (asked.a, asked.b))
        return comparison_document(compare(a, b, gpu_hour_price=asked.gpu_hour_price))

    return Answer(document=await service.ask(made))
