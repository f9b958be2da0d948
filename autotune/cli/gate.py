"""What `promote` asks the gate, and how its verdict is shown and ends the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from autotune.cli.gate_against import CURRENT, against_side, file_of
from autotune.cli.surroundings import surroundings
from autotune.errors import GateFailed, GateInconclusive, InvalidFile, InvalidOption
from autotune.gate_session import GateRequest, KeptStudy, verify_trial
from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate.prospects import OPEN_TO_MORE
from autotune.promote.history import Entry
from autotune.promote.rendering import gate_summary
from autotune.promote.targets import Target
from autotune.records import CriterionState, GateRecord, GateSide, GateVerdict, Phase, Trial
from autotune.report.view import StudyView
from autotune.report.wording import printable
from autotune.review.promoting import extra_of
from autotune.store.codec import encode
from autotune.store.gate_files import RECORD_FILE, gates_of
from autotune.store.places import Places
from autotune.verification import LAUNCH_LIMIT
from autotune.verification_launch import MOST_LAUNCHES

if TYPE_CHECKING:
    from autotune.store.repository import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class GateAsked:
    """The gate's options of the command line.

    Attributes:
        against: `current`, `baseline` or a file; None for what runs today, else the baseline.
        most_launches: None for the usual ones, or `launches` where those are more.
        windows: of arrivals in each launch; None for as many as the first launch asks for.
    """

    skip: bool
    against: str | None
    launches: int
    most_launches: int | None
    windows: int | None
    slo: str | None
    vllm_command: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateToRun:
    """A verification with everything that it wants of the store.

    Attributes:
        request: None where it is skipped.
        kept: the study; None where it is skipped.
        current: what runs today under the name.
        file: of flags, that it is held against; None where it is held against something else.
        held_extra, own_extra: what was after `--` in the study of what runs today, and in the candidate's.
    """

    study: str
    candidate: GateSide
    current: Entry | None
    request: GateRequest | None = None
    kept: KeptStudy | None = None
    file: Path | None = None
    held_extra: tuple[str, ...] = ()
    own_extra: tuple[str, ...] = ()
    holds_current: bool = False


def to_run(
    asked: GateAsked, store: Store, places: Places, view: StudyView, trial: Trial, current: Entry | None
) -> GateToRun:
    """What to verify.

    Raises:
        InvalidOption, InvalidFile: `--against` names nothing that can be launched.
    """
    candidate = _candidate(view, trial)
    if asked.skip:
        return GateToRun(study=view.name, candidate=candidate, current=current)
    most = max(MOST_LAUNCHES, asked.launches) if asked.most_launches is None else asked.most_launches
    request = GateRequest(
        trial=trial.number,
        against=against_side(asked.against, store, current, view.model),
        launches=asked.launches,
        most_launches=most,
        windows=WindowRule() if asked.windows is None else WindowRule.fixed(asked.windows),
        again=len(gates_of(places.root, view.name, trial.number)),
        slo=asked.slo,
        vllm_command=asked.vllm_command,
    )
    return GateToRun(
        study=view.name,
        candidate=candidate,
        current=current,
        request=request,
        kept=KeptStudy.of(store, view.name),
        file=file_of(asked.against),
        held_extra=extra_of(store, current.promotion.study) if current is not None else (),
        own_extra=extra_of(store, view.name),
        holds_current=current is not None and asked.against in (None, CURRENT),
    )


def verified(found: GateToRun, places: Places) -> GateRecord:
    """The record of a verification that passed, or that was skipped.

    Raises:
        GateFailed, GateInconclusive: the verdict; its record lies beside the launches.
    """
    if found.request is None or found.kept is None:
        return GateRecord.skipped(found.study, found.candidate, why="--skip-gate was given", at=datetime.now(UTC))
    most = found.request.most_launches
    try:
        record = verify_trial(found.request, found.kept, places, surroundings(), _Teller())
    except InvalidOption as error:
        raise _in_its_file(error, found) from None
    if found.current is not None and found.holds_current:
        unlike = _unlike(found.current, record, held=found.held_extra, own=found.own_extra)
        record = replace(record, doubts=(*record.doubts, *unlike))
    kept = _keep(record)
    _tell(record)
    if record.verdict is GateVerdict.PASSED:
        return record
    where = f" The record is {kept}." if kept else ""
    if record.verdict is GateVerdict.FAILED:
        raise GateFailed(
            f"the gate failed, and nothing was rendered: {record.reason}",
            hint=f"Promote another trial, or --skip-gate, which is recorded.{where}",
        )
    raise GateInconclusive(
        f"the gate could not decide, and nothing was rendered: {record.reason}",
        hint=f"{_more(record, most)}{where}",
    )


def _in_its_file(error: InvalidOption, found: GateToRun) -> InvalidFile | InvalidOption:
    """What a flag's value is refused with, where it stands in a file that somebody wrote."""
    side = found.request.against if found.request else None
    flag = error.option.removeprefix("--")
    if found.file is None or side is None or flag not in dict(side.config):
        return error
    return InvalidFile(str(found.file), flag, error.value, error.allowed, hint=error.hint)


def _more(record: GateRecord, most: int) -> str:
    """What may decide where so many launches did not."""
    if any(launch.failure is not None for launch in record.launches):
        return "A launch came to nothing, which ends the gate: try again once its reason is gone."
    if not {one.name for one in record.undecided} <= OPEN_TO_MORE:
        return "More launches would not tell: see what is undecided."
    said = f"{record.looks[-1].outlook}. " if record.looks and record.looks[-1].outlook else ""
    if most >= LAUNCH_LIMIT:
        return f"{said}There are no more launches to be had: what is not seen by so many is hardly there."
    return f"{said}More launches may tell: --gate-most-launches {min(2 * most, LAUNCH_LIMIT)}."


def _candidate(view: StudyView, trial: Trial) -> GateSide:
    figures = view.joined(trial)
    return GateSide(
        label=f"trial {trial.number} of study {view.name}",
        config=trial.config,
        model=str(trial.config.get("model") or view.model),
        gpus=max(1, trial.gpus),
        tok_s_per_gpu=figures.output_tok_s_per_gpu,
        ttft_p95_s=figures.ttft_p95_s,
    )


def _unlike(current: Entry, record: GateRecord, *, held: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    """In what the launches of what runs today were not what runs today, one sentence each.

    Args:
        held, own: what its study had after `--`, and what the launches had.
    """
    promotion, doubts = current.promotion, list[str]()
    if promotion.node and record.node and promotion.node != record.node:
        doubts.append(f"{current.label} was promoted on {promotion.node}, and this was verified on {record.node}")
    version = (record.vllm_version or "").partition("+")[0]
    if promotion.version_measured and version and version != promotion.vllm_version.partition("+")[0]:
        doubts.append(f"{current.label} runs vLLM {promotion.vllm_version}, and was launched here with {version}")
    if held != own:
        was, now = (" ".join(words) or "nothing" for words in (held, own))
        doubts.append(f"{current.label} was rendered with {was} after `--`, and was launched here with {now}")
    return tuple(doubts)


PLACED_BY_OTHERS = frozenset({Target.KUBERNETES, Target.HELM})
"""Targets whose machine a scheduler chooses."""


def placed(gate: GateRecord, targets: Sequence[Target]) -> GateRecord:
    """The record, with a doubt where what is rendered may come to run on another node than it was verified on."""
    chosen = [str(target) for target in targets if target in PLACED_BY_OTHERS]
    if gate.verdict is GateVerdict.SKIPPED or gate.node is None or not chosen:
        return gate
    doubt = (
        f"verified on {gate.node}; {' and '.join(chosen)} may place it on another node, of which the verdict says "
        "nothing: tie it to such nodes"
    )
    return replace(gate, doubts=(*gate.doubts, doubt))


def overtaken(gate: GateRecord, before: Entry | None, now: Entry | None) -> GateRecord:
    """The record, with a doubt where somebody promoted under the same name while the launches were made.

    Args:
        before, now: what ran when the verification began, and what runs at its end.
    """
    if now is None or gate.verdict is GateVerdict.SKIPPED or (before is not None and before.version == now.version):
        return gate
    doubt = f"{now.label} was promoted meanwhile: nobody verified this config against it"
    return replace(gate, doubts=(*gate.doubts, doubt))


class _Teller:
    """Says on standard error which launch is being made."""

    def launch_started(self, place: int, launches: int, side: GateSide) -> None:
        typer.echo(f"gate: launch {place} of {launches}, {printable(side.label)}", err=True)

    def phase(self, phase: Phase, detail: str) -> None:
        """Not shown: launches of minutes each are told apart by their first line."""

    def note(self, text: str) -> None:
        typer.echo(f"gate: {printable(text)}", err=True)


def _keep(record: GateRecord) -> Path | None:
    """The record as JSON beside the launches, whatever the verdict; None where it cannot be written."""
    if not record.launches:
        return None
    path = Path(record.launches[0].directory).parent / RECORD_FILE
    with suppress(OSError):
        path.write_text(json.dumps(gate_document(record), indent=2), encoding="utf-8")
        return path
    return None


def gate_document(record: GateRecord) -> Any:
    """The whole record as JSON-able values."""
    return encode(record)


def _tell(record: GateRecord) -> None:
    """Every criterion with what was seen, on standard error: standard output is the promotion's."""
    if record.simulated:
        typer.echo("gate: SIMULATED, no server was launched", err=True)
    for one in record.criteria:
        if one.state is not CriterionState.NOT_APPLICABLE:
            typer.echo(
                f"gate: {one.state:<9} {one.name}: {printable(one.found)} (asked: {printable(one.asked)})", err=True
            )
    for doubt in record.doubts:
        typer.echo(f"gate: doubt: {printable(doubt)}", err=True)
    typer.echo(f"gate: {printable(gate_summary(record))}", err=True)
