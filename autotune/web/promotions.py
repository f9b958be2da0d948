"""Operations on promotions: the history, what one would look like, making one, going back."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.engine.redaction import redact_prose
from autotune.errors import InvalidOption, NotPromotable, UnknownName
from autotune.promote import Promotion, RenderedFile, render, serve_argv
from autotune.promote.history import Entry, before, current_of
from autotune.promote.writing import check_files
from autotune.records import Trial
from autotune.review.history import history_of
from autotune.review.history_text import diff_document, history_document
from autotune.review.promoting import Rendering, check_name_of, chosen_number, current_entry, deployment_of, roll_back
from autotune.web.asked import DeploymentPath, DiffQuery, VersionPath
from autotune.web.job import JobKind
from autotune.web.jobs import accepted
from autotune.web.problems import Refused
from autotune.web.route import Answer, Call
from autotune.web.service import Service
from autotune.web.wanted import NewPromotion, Rollback

if TYPE_CHECKING:
    from autotune.store.repository import Store


AUTHOR = "the service"
"""Who promoted where the request does not say: the service knows a token, and no person."""


async def list_promotions(service: Service, call: Call) -> Answer:
    """What was promoted, oldest first (`autotune promotions --json`)."""
    del call

    def made(store: Store) -> dict[str, Any]:
        history = history_of(store)
        return history_document(history, _current(history))

    return Answer(document=await service.ask(made, empty=history_document((), frozenset())))


def _current(history: tuple[Entry, ...]) -> frozenset[str]:
    return frozenset(entry.label for entry in current_of(history))


def own_history(history: tuple[Entry, ...], name: str) -> tuple[Entry, ...]:
    """The promotions of one deployment.

    Raises:
        UnknownName: there are none.
    """
    found = tuple(entry for entry in history if entry.promotion.name == name)
    if not found:
        raise UnknownName("promotion", name, sorted({entry.promotion.name for entry in history}))
    return found


def of_version(own: tuple[Entry, ...], version: int) -> Entry:
    """One of them.

    Raises:
        UnknownName: there is no such version.
    """
    if version > len(own):
        label = f"{own[0].promotion.name}@{version}"
        raise UnknownName("promotion", label, (), hint=f"There are versions 1 to {len(own)}.")
    return own[version - 1]


async def get_deployment(service: Service, call: Call) -> Answer:
    """The history of one deployment."""
    path: DeploymentPath = call.path

    def made(store: Store) -> dict[str, Any]:
        history = history_of(store)
        return history_document(own_history(history, path.name), _current(history))

    return Answer(document=await _asked(service, made, path.name))


async def get_promotion(service: Service, call: Call) -> Answer:
    """One promotion with its files and the gate's record."""
    path: VersionPath = call.path

    def made(store: Store) -> dict[str, Any]:
        history = history_of(store)
        return whole_entry(of_version(own_history(history, path.name), path.version), history)

    return Answer(document=await _asked(service, made, path.name))


def whole_entry(entry: Entry, history: tuple[Entry, ...]) -> dict[str, Any]:
    """A promotion in its place, with the texts of its files."""
    place = {"label": entry.label, "version": entry.version, "current": entry.label in _current(history)}
    return {**place, "directory": entry.directory, **entry.promotion.as_document()}


async def get_diff(service: Service, call: Call) -> Answer:
    """What differs between two versions of a deployment (`autotune diff --json`)."""
    path: DeploymentPath = call.path
    asked: DiffQuery = call.query

    def made(store: Store) -> dict[str, Any]:
        own = own_history(history_of(store), path.name)
        second = own[-1] if asked.b is None else of_version(own, asked.b)
        first = before(own[: second.version]) if asked.a is None else of_version(own, asked.a)
        return diff_document(first, second)

    return Answer(document=await _asked(service, made, path.name))


async def _asked(service: Service, made: Any, name: str) -> Any:
    try:
        return await service.ask(made)
    except Refused as refused:
        if refused.status is HTTPStatus.NOT_FOUND and refused.kind == "unknown-study":
            raise UnknownName("promotion", name, ()) from None  # no database, so no promotion
        raise


# --- making them ----------------------------------------------------------------------------------------------------


async def preview_promotion(service: Service, call: Call) -> Answer:
    """What a promotion would render, and change against what runs today; nothing is verified or written."""
    asked: NewPromotion = call.body

    def made(store: Store) -> dict[str, Any]:
        draft = _draft(service, store, asked)
        return {
            "study": asked.study,
            "trial": draft.trial.number,
            "name": draft.name,
            "simulated": draft.promotion.simulated,
            "current": draft.current.label if draft.current else None,
            "argv": list(draft.promotion.argv),
            "reason": draft.promotion.reason,
            "files": [{"path": file.path, "text": file.text} for file in draft.files],
            "diff": None if draft.current is None else diff_document(draft.current, draft.entry),
        }

    return Answer(document=await service.ask(made))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draft:
    """A promotion that nobody has made."""

    name: str
    trial: Trial
    promotion: Promotion
    files: tuple[RenderedFile, ...]
    current: Entry | None

    @property
    def entry(self) -> Entry:
        """In the place that it would have."""
        version = self.current.version + 1 if self.current else 1
        return Entry(version=version, directory="", promotion=self.promotion)


def _draft(service: Service, store: Store, asked: NewPromotion) -> _Draft:
    """Everything that can be refused is refused here, before hours of verification.

    Raises:
        NotPromotable: not measured, only simulated without leave, or nothing is picked.
        InvalidOption: files of others are where these would go.
    """
    if asked.trial is not None and asked.pick is not None:
        raise InvalidOption("pick", str(asked.pick), "either pick or trial")
    name = asked.name or asked.study
    study = store.study(asked.study)
    check_name_of(store, name)
    view = service.view(store, asked.study, slo=asked.slo, pick=asked.pick)
    trial = store.trial(asked.study, chosen_number(view, asked.trial))
    rendering = Rendering(
        name=name,
        author=asked.author or AUTHOR,
        reason=asked.reason,
        allow_simulated=asked.allow_simulated,
        port=asked.port,
    )
    named = asked.trial is not None
    deployment = deployment_of(rendering, study, view, trial, named_trial=named, created_at=service.now(), gate=None)
    targets = tuple(dict.fromkeys(asked.targets))
    files = render(deployment, targets)
    check_files(files, service.settings.promotions / name, deployment=name)
    promotion = Promotion.of(
        deployment,
        files,
        targets=targets,
        argv=serve_argv(deployment),
        simulated_allowed=asked.allow_simulated,
        slo=str(view.slo) if view.slo else None,
    )
    return _Draft(name=name, trial=trial, promotion=promotion, files=files, current=current_entry(store, name))


async def create_promotion(service: Service, call: Call) -> Answer:
    """Put a promotion into the queue: the gate launches servers, so it waits for the node as studies do."""
    asked: NewPromotion = call.body
    draft = await service.ask(lambda store: _draft(service, store, asked))
    if asked.against == "current" and draft.current is None:
        raise InvalidOption("against", "current", "baseline: nothing was promoted under this name yet")
    job = await service.queue.add(
        kind=JobKind.PROMOTION,
        study=asked.study,
        words=_words(service, asked, draft.name),
        needs_node=not asked.skip_gate,
        trial=draft.trial.number,
        deployment=draft.name,
    )
    return accepted(service, job)


def _words(service: Service, asked: NewPromotion, name: str) -> tuple[str, ...]:
    words = ["promote", asked.study, "--target", ",".join(dict.fromkeys(asked.targets)), "--name", name]
    words += [
        "--out",
        str((service.settings.promotions / name).absolute()),
        "--author",
        redact_prose(asked.author or AUTHOR),
    ]
    said: tuple[tuple[str, object], ...] = (
        ("--trial", asked.trial),
        ("--pick", asked.pick),
        ("--slo", asked.slo),
        ("--against", asked.against),
        ("--gate-windows", asked.gate_windows),
        ("--vllm-command", service.settings.vllm_command),
        ("--gate-launches", asked.gate_launches),
        ("--gate-most-launches", asked.gate_most_launches),
        ("--port", asked.port),
    )
    words += [word for option, value in said if value is not None for word in (option, str(value))]
    # With a sign of equality, as these may begin with a dash.
    words += [f"--reason={redact_prose(asked.reason)}"] if asked.reason else []
    words += ["--allow-simulated"] if asked.allow_simulated else []
    return (*words, *(["--skip-gate"] if asked.skip_gate else []))


async def roll_back_deployment(service: Service, call: Call) -> Answer:
    """Write the files of an earlier version again, and record that as the newest one."""
    path: DeploymentPath = call.path
    asked: Rollback = call.body

    def made(store: Store) -> dict[str, Any]:
        own = own_history(history_of(store), path.name)
        if asked.to is not None:
            of_version(own, asked.to)
        _check_folder(service, own[-1])
        done = roll_back(
            store,
            path.name,
            to=asked.to,
            folder=None,
            reason=asked.reason,
            author=asked.author or AUTHOR,
            created_at=service.now(),
        )
        return {
            **whole_entry(done.entry, history_of(store)),
            "written": [str(one) for one in done.written],
            "left_behind": [str(one) for one in done.left],
        }

    return Answer(document=await _asked(service, made, path.name))


def _check_folder(service: Service, latest: Entry) -> None:
    """Files that somebody put elsewhere by hand are theirs: no request writes outside the service's own folder.

    Raises:
        NotPromotable: what runs today lies elsewhere.
    """
    own = service.settings.promotions.resolve()
    if not Path(latest.directory).resolve().is_relative_to(own):
        raise NotPromotable(
            f"the files of {latest.label} are in {latest.directory}, where no request may write",
            hint=f"Use `autotune rollback {latest.promotion.name}` on that machine.",
        )
