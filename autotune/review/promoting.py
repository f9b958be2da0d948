"""Promoting a trial: what is rendered, and what the history then says. For the command line and the service alike."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autotune import __version__
from autotune.engine.flags import MODEL
from autotune.engine.redaction import redact_prose
from autotune.errors import NotPromotable, StorageError
from autotune.promote import (
    Deployment,
    Entry,
    Offered,
    Promotion,
    Story,
    StudyFacts,
    Wishes,
    deployment_from,
    write_files,
)
from autotune.promote.deployment_name import check_deployment_name, check_unlike_others
from autotune.promote.history import before, current_of, named
from autotune.promote.parameters import without_secrets_and_place
from autotune.promote.writing import folder_held
from autotune.records import Config, GateRecord, LevelRole, Trial
from autotune.report.view import StudyView
from autotune.review.history import history_of
from autotune.review.views import node_of
from autotune.store.repository import Store
from autotune.store.study_record import PromotionRecord, StudyRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a deployment is to look, beside the config.

    Attributes:
        name: of the deployment.
        reason: None for one that says how the trial was chosen.
    """

    name: str
    author: str
    reason: str | None = None
    allow_simulated: bool = False
    port: int = 8000
    bind: str = "127.0.0.1"
    image: str | None = None
    vllm_version: str | None = None
    gpu_indices: tuple[int, ...] = ()


def deployment_of(
    asked: Rendering,
    study: StudyRecord,
    view: StudyView,
    trial: Trial,
    *,
    named_trial: bool,
    created_at: datetime,
    gate: GateRecord | None,
) -> Deployment:
    """The deployment of a trial.

    Args:
        named_trial: the trial was named and not picked.

    Raises:
        NotPromotable: it was not measured, or only simulated without leave.
    """
    story = Story(
        created_at=created_at,
        autotune_version=__version__,
        figures=view.joined(trial),
        gate=gate,
        author=redact_prose(asked.author),
        reason=redact_prose(asked.reason or "") or _why(view, trial, named=named_trial),
    )
    wishes = Wishes(
        port=asked.port,
        bind=asked.bind,
        image=asked.image,
        vllm_version=asked.vllm_version,
        gpu_indices=asked.gpu_indices,
        allow_simulated=asked.allow_simulated,
    )
    return deployment_from(_facts(study, trial.config), trial, name=asked.name, story=story, wishes=wishes)


def chosen_number(view: StudyView, given: int | None) -> int:
    """The trial that is promoted: as named, else the pick.

    Raises:
        NotPromotable: nothing was picked.
    """

    if given is not None:
        return given
    if view.pick is None:
        limit = f" that meets {view.slo}" if view.slo else ""
        raise NotPromotable(
            f"study {view.name!r} has no trial to recommend{limit}", hint=f"See `autotune pareto {view.name}`."
        )
    return view.pick.number


def check_name_of(store: Store, name: str) -> None:
    """Refuse a name that is none, or that another deployment's files and objects have.

    Raises:
        InvalidOption: it is.
    """
    check_deployment_name(name)
    check_unlike_others(name, dict.fromkeys(one.promotion.name for one in history_of(store)))


def current_entry(store: Store, name: str) -> Entry | None:
    """What runs under a name, as far as the history says; None where nothing was promoted under it."""

    return next((one for one in current_of(history_of(store)) if one.promotion.name == name), None)


def extra_of(store: Store, study: str) -> tuple[str, ...]:
    """What a study has after `--`, without secrets and without where it listens."""
    words = tuple(str(word) for word in store.study(study).spec.get("extra_args", ()))
    return without_secrets_and_place(words)[0]


def stored_promotion(store: Store, promotion: Promotion, directory: str) -> Entry:
    """A promotion whose files were written, put into the history; it comes back in its place there.

    Raises:
        StorageError: it cannot be; says that the files are there already.
    """
    record = PromotionRecord(
        study=promotion.study,
        trial=promotion.trial,
        created_at=promotion.created_at,
        targets=promotion.targets,
        directory=directory,
        simulated=promotion.simulated,
        details=promotion.as_document(),
    )
    try:
        store.add_promotion(record)
    except StorageError as error:
        unsaid = f"The files are in {directory}, and no history knows of them: the same command records them."
        error.hint = " ".join(filter(None, (error.hint, unsaid)))
        raise
    return [entry for entry in history_of(store) if entry.promotion == promotion][-1]


def offered_by(trial: Trial) -> Offered:
    """What the trial's level of fixed rate sent and hit."""

    level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
    if level is None:
        return Offered()
    done = level.completed
    return Offered(
        rate_rps_per_gpu=None if level.level.rate_rps is None else level.level.rate_rps / max(1, trial.gpus),
        prompt_tokens_mean=level.prompt_tokens / done if done and level.prompt_tokens is not None else None,
        output_tokens_mean=level.output_tokens / done if done and level.output_tokens is not None else None,
        prefix_hit_share=level.server.prefix_hit_share if level.server else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A rollback that was done.

    Attributes:
        source: the version whose files were written again.
        left: files of what ran until then that it did not replace.
    """

    entry: Entry
    latest: Entry
    source: Entry
    written: tuple[Path, ...]
    left: tuple[Path, ...]


def roll_back(
    store: Store,
    name: str,
    *,
    to: int | None,
    folder: Path | None,
    reason: str | None,
    author: str,
    created_at: datetime,
    overwrite: bool = False,
) -> Restored:
    """Write the files of an earlier promotion again, byte for byte, and record that as the newest one.

    Args:
        to: the version; None for the last one before what runs today.
        folder: where they go; None for where those of today are.

    Raises:
        UnknownName: there is no such promotion.
        NotPromotable: there is nothing to go back to, or its files were not kept.
    """
    history = history_of(store)
    latest = named(history, name)
    own = [entry for entry in history if entry.promotion.name == latest.promotion.name]
    chosen = before(own) if to is None else named(history, f"{latest.promotion.name}@{to}")
    source = own[chosen.effective - 1]
    place = Path(latest.directory) if folder is None else folder
    why = redact_prose(reason or "") or f"back from {latest.label}"
    by = redact_prose(author)
    back = source.promotion.restored(source.version, created_at=created_at, author=by, reason=why)
    with folder_held(place):
        written = write_files(back.rendered(), place, deployment=back.name, overwrite=overwrite)
        entry = stored_promotion(store, back, str(place.absolute()))
    return Restored(entry=entry, latest=latest, source=source, written=written, left=_left_behind(latest, written))


def _left_behind(latest: Entry, written: tuple[Path, ...]) -> tuple[Path, ...]:
    """Files of what ran until now that the rollback did not replace."""
    paths = [Path(latest.directory) / file.path for file in latest.promotion.files]
    replaced = {path.absolute() for path in written}
    return tuple(path for path in paths if path.absolute() not in replaced and path.exists())


def _why(view: StudyView, trial: Trial, *, named: bool) -> str:
    """The reason where the operator gave none."""
    if view.pick is None or (named and trial.number != view.pick.number):
        return f"trial {trial.number} was named"
    return f"the study's pick ({view.pick.rule}): {view.pick.reason}"


def _facts(study: StudyRecord, config: Config) -> StudyFacts:
    """The part of a study that a deployment of `config` is made of.

    Local model folders become absolute: another place reads it.
    """

    checkpoint = config.get(MODEL)
    spec = study.spec
    return StudyFacts(
        name=study.name,
        model=_absolute(study.identity["model"]),
        checkpoints=((checkpoint, _absolute(checkpoint)),) if isinstance(checkpoint, str) else (),
        workload=str(spec.get("workload", "")),
        node=node_of(study),
        extra_args=tuple(str(word) for word in spec.get("extra_args", ())),
        command=tuple(str(word) for word in spec.get("command", ("vllm", "serve"))),
    )


def _absolute(model: str) -> str:
    """The whole path of a model that is a folder here; any other name as it is."""
    folder = Path(model).expanduser()
    return str(folder.resolve()) if folder.is_dir() else model
