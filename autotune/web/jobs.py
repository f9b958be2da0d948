"""Operations on the queue, and those that put something into it."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from autotune.errors import ExitCode, StorageError
from autotune.node.gpus import parse_node_name
from autotune.recipe import ExecutorChoice, compose, default_name, study_arguments
from autotune.review.stopping import tell_to_stop
from autotune.search.samplers import check_sampler
from autotune.slo_text import parse_slo
from autotune.web.asked import JobPath, LogQuery, StudyPath
from autotune.web.job import ACTIVE, Job, JobKind
from autotune.web.job_view import job_document, queue_document
from autotune.web.problems import Refused
from autotune.web.route import Answer, Call
from autotune.web.service import Service, check_study_name
from autotune.web.trials import log_piece
from autotune.yaml_input import parse_yaml

if TYPE_CHECKING:
    from autotune.store.repository import Store
    from autotune.store.study_record import StudyRecord


async def list_jobs(service: Service, call: Call) -> Answer:
    """What runs, what waits, and how the last ones ended."""
    del call
    return Answer(document=queue_document(service.queue))


async def get_job(service: Service, call: Call) -> Answer:
    """One job."""
    path: JobPath = call.path
    return Answer(document=job_document(service.queue, service.queue.found(path.id)))


async def get_job_log(service: Service, call: Call) -> Answer:
    """A piece of what a job's command printed, secrets taken out."""
    path: JobPath = call.path
    asked: LogQuery = call.query
    job = service.queue.found(path.id)
    complete = job.state not in ACTIVE
    piece = log_piece(service.queue.log_file(job.id), asked, complete=complete)
    return Answer(document={**piece, "complete": complete})


async def stop_job(service: Service, call: Call) -> Answer:
    """Take a job out of the queue, or end it as Ctrl-C would."""
    path: JobPath = call.path
    job = await service.queue.stop(path.id)
    return Answer(document=job_document(service.queue, job), status=HTTPStatus.ACCEPTED)


def accepted(service: Service, job: Job) -> Answer:
    """A job that was put into the queue."""
    return Answer(
        document=job_document(service.queue, job),
        status=HTTPStatus.ACCEPTED,
        headers={"Location": f"/api/v1/jobs/{job.id}"},
    )


# --- studies --------------------------------------------------------------------------------------------------------


async def create_study(service: Service, call: Call) -> Answer:
    """Put a new study into the queue. It is checked as a study file is, and by what the operator allows."""
    fields = service.settings.policy.vetted(call.body.model_dump(mode="json", exclude_none=True))
    name = _checked(fields)
    fields["name"] = name
    if await _stored(service, name) is not None:
        raise Refused(
            HTTPStatus.CONFLICT,
            "study-exists",
            f"study {name!r} exists",
            hint=f"POST /api/v1/studies/{name}/start goes on with it; choose another name for another question.",
            exit_code=ExitCode.STUDY_MISMATCH,
        )
    file = _request_file(service, name)
    async with service.creating:  # of two requests of one name the second must not replace the first one's file
        service.queue.check_free(name)
        _write(file, fields)
        return accepted(service, await _queued(service, name, file))


def _checked(fields: dict[str, Any]) -> str:
    """The study's name, once everything was looked at that can be without a launch or the network.

    Raises:
        BadInput: something that cannot be used.
        ClusterUnusable: it is for a Ray cluster, and Ray is not installed.
    """
    # A text that YAML cannot give back must not be found out when the study's turn comes.
    parse_yaml(yaml.safe_dump(fields, sort_keys=True), file="the body")
    arguments = study_arguments(fields, "the body")
    arguments.setdefault(
        "name",
        default_name(
            str(fields.get("model") or "study"),
            "numbers" if "numbers" in fields else str(fields.get("workload", "chat")),
            fields.get("node"),
        ),
    )
    recipe = compose(arguments, {})
    check_sampler(recipe.sampler)
    if recipe.executor is ExecutorChoice.RAY:
        from autotune.executor.ray_cluster import check_ray  # with all that plans a study: few requests need it

        check_ray()
    for node in (recipe.node, recipe.default_node):
        if node is not None:
            parse_node_name(node)
    if recipe.slo is not None:
        parse_slo(recipe.slo, option="slo")
    return recipe.name


async def start_study(service: Service, call: Call) -> Answer:
    """Go on with a study that was made through the service."""
    path: StudyPath = call.path
    check_study_name(path.name)
    study = await _stored(service, path.name)
    file = _request_file(service, path.name)
    if not file.exists():
        if study is None:
            await service.ask(lambda store: store.study(path.name))  # says which there are
        raise Refused(
            HTTPStatus.CONFLICT,
            "not-ours",
            f"study {path.name!r} was not made through this service",
            hint="The same `autotune study` command goes on with it.",
        )
    trials = call.body.trials
    if isinstance(trials, str):
        # As a number: a job that is begun again must not add to the trials twice.
        trials = (study.target_trials if study else 0) + int(trials)
    return accepted(service, await _queued(service, path.name, file, trials))


async def _queued(service: Service, name: str, file: Path, trials: int | None = None) -> Job:
    words = ["study", "--file", str(file), "--name", name]
    if trials is not None:
        words += ["--trials", str(trials)]
    if service.settings.vllm_command is not None:
        words += ["--vllm-command", service.settings.vllm_command]
    return await service.queue.add(kind=JobKind.STUDY, study=name, words=tuple(words))


async def stop_study(service: Service, call: Call) -> Answer:
    """End a study as Ctrl-C would, whoever runs it; everything is stored, and it can go on."""
    path: StudyPath = call.path
    check_study_name(path.name)
    job = service.queue.jobs.open_for(path.name)
    if job is not None and job.kind is JobKind.STUDY:
        waited = job.state not in ACTIVE
        await service.queue.stop(job.id, now=call.body.now)
        return _stopping(path.name, "dequeued" if waited else "stopping")
    await service.ask(lambda store: store.study(path.name))
    holder = service.settings.places.folder(path.name).holder()
    if holder is None:
        return _stopping(path.name, "not running")
    tell_to_stop(path.name, holder, now=call.body.now)
    return _stopping(path.name, "stopping")


def _stopping(study: str, state: str) -> Answer:
    return Answer(document={"study": study, "state": state}, status=HTTPStatus.ACCEPTED)


async def _stored(service: Service, name: str) -> StudyRecord | None:
    def look(store: Store) -> list[StudyRecord]:
        return [study for study in store.studies() if study.name == name]

    none: list[StudyRecord] = []
    found = await service.ask(look, empty=none)
    return found[0] if found else None


def _request_file(service: Service, name: str) -> Path:
    return service.settings.folder / "studies" / f"{name}.yaml"


def _write(file: Path, fields: dict[str, Any]) -> None:
    part = file.with_name(f"{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        part.write_text(yaml.safe_dump(fields, sort_keys=True), encoding="utf-8")
        part.replace(file)
    except OSError as error:
        raise StorageError(f"{file}: {error.strerror}") from None


def is_made_here(service: Service, name: str) -> bool:
    """Whether a study was made through the service, which then can go on with it."""
    return _request_file(service, name).exists()


def may_start(service: Service, name: str) -> tuple[bool, str | None]:
    """Whether `start` would go on with a study, and why not."""
    if service.settings.look_only:
        return False, "this service shows, and changes nothing"
    job = service.queue.jobs.open_for(name)
    if job is not None:
        return False, f"job {job.id} is {job.state}"
    if not is_made_here(service, name):
        return False, "it was not made through this service"
    if service.settings.places.folder(name).holder() is not None:
        return False, "it runs"
    return True, None
