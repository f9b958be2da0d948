"""Operations that look at one trial: its evidence, its log, its requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.engine.redaction import redact
from autotune.report.json_view import level_document, show_document
from autotune.review.evidence import log_path, serve_line_of
from autotune.review.views import with_evidence
from autotune.web.asked import LogQuery, TrialPath
from autotune.web.route import Answer, Call
from autotune.web.service import Service, check_study_name

if TYPE_CHECKING:
    from autotune.store.repository import Store


async def get_trial(service: Service, call: Call) -> Answer:
    """All the evidence of one trial (`autotune show --json`)."""
    path: TrialPath = call.path
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        trial = with_evidence(store, path.name, store.trial(path.name, path.number))
        view = service.view(store, path.name)
        return show_document(
            view,
            trial,
            serve_line=serve_line_of(store.study(path.name), trial),
            log_path=log_path(trial),
            attempts=store.attempts(path.name, path.number),
        )

    return Answer(document=await service.ask(made))


async def list_measurements(service: Service, call: Call) -> Answer:
    """The load levels of one trial, with every figure."""
    path: TrialPath = call.path
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        trial = with_evidence(store, path.name, store.trial(path.name, path.number))
        levels = trial.result.measurements if trial.result else ()
        return {"levels": [level_document(level) for level in levels]}

    return Answer(document=await service.ask(made))


async def get_log(service: Service, call: Call) -> Answer:
    """A piece of a trial's server log, secrets taken out; simulated trials have none."""
    path: TrialPath = call.path
    asked: LogQuery = call.query
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        trial = store.trial(path.name, path.number)
        found = log_path(trial)
        piece = log_piece(Path(found) if found else None, asked)
        return {"trial": path.number, **piece, "complete": trial.result is not None}

    return Answer(document=await service.ask(made))


def log_piece(path: Path | None, asked: LogQuery) -> dict[str, Any]:
    """Whole lines of a file from an offset on; a line that is longer than was asked for comes in pieces.

    Secrets are recognised line by line, so a piece begins and ends where lines do.
    """
    if path is None:
        return {"text": "", "offset": 0, "next_offset": 0, "size": 0}
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = max(0, size + asked.offset) if asked.offset < 0 else min(asked.offset, size)
            file.seek(start)
            found = file.read(asked.limit)
    except OSError:
        return {"text": "", "offset": 0, "next_offset": 0, "size": 0}
    if asked.offset < 0 and start > 0:
        head = found.find(b"\n") + 1  # 0 where the whole piece is one line
        found, start = found[head:], start + head
    cut = found.rfind(b"\n") + 1
    if cut and start + len(found) < size:
        found = found[:cut]
    lines = found.decode("utf-8", "replace").splitlines(keepends=True)
    return {
        "text": "".join(redact(line) for line in lines),
        "offset": start,
        "next_offset": start + len(found),
        "size": size,
    }
