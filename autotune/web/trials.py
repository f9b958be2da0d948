"""Operations that look at one trial: its evidence, its log, its requests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from autotune.engine.redaction import redact
from autotune.report.json_view import level_document, show_document
from autotune.report.page import curve_document
from autotune.review.evidence import log_path, serve_line_of
from autotune.review.page import spread_file
from autotune.review.verifications import verifications_of
from autotune.review.views import with_evidence
from autotune.store.codec import encode
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


async def get_curve(service: Service, call: Call) -> Answer:
    """What the page draws of one trial: its levels from the lowest load on, and its requests' TTFTs in bins."""
    path: TrialPath = call.path
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        trial = store.trial(path.name, path.number)
        spread = spread_file(trial, service.settings.places, path.name)
        return {**curve_document(trial), "spread": None if spread is None else spread.as_document()}

    return Answer(document=await service.ask(made))


MOST_GATES = 20


async def list_gates(service: Service, call: Call) -> Answer:
    """The verifications of one trial, the first one first, with the whole record of each that came to a verdict."""
    path: TrialPath = call.path
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        store.trial(path.name, path.number)  # or it is said that there is none
        found = verifications_of(service.settings.places, path.name, path.number)
        return {
            "gates": [
                {
                    "count": one.count,
                    "launches": one.launches,
                    "record": None if one.record is None else encode(one.record),
                }
                for one in found[-MOST_GATES:]
            ]
        }

    return Answer(document=await service.ask(made))


async def get_log(service: Service, call: Call) -> Answer:
    """A piece of a trial's server log, secrets taken out; simulated trials have none."""
    path: TrialPath = call.path
    asked: LogQuery = call.query
    check_study_name(path.name)

    def made(store: Store) -> dict[str, Any]:
        trial = store.trial(path.name, path.number)
        found = log_path(trial)
        complete = trial.result is not None
        piece = log_piece(Path(found) if found else None, asked, complete=complete)
        return {"trial": path.number, **piece, "complete": complete}

    return Answer(document=await service.ask(made))


LONGEST_LINE_BYTES = 1024 * 1024
_NOTHING = {"text": "", "offset": 0, "next_offset": 0, "size": 0}


def log_piece(path: Path | None, asked: LogQuery, *, complete: bool) -> dict[str, Any]:
    """Whole lines of a file around what was asked for, one at least, however long it is.

    Secrets are recognised line by line. A piece that began or ended within one would show it to whoever asks for the
    rest, so no piece does; of a line longer than `LONGEST_LINE_BYTES` nothing is shown.

    Args:
        complete: nothing is written any more, so that what stands behind the last newline is a line as well.
    """
    if path is None:
        return dict(_NOTHING)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            start = _begin(file, asked.offset, size)
            text, end = _lines(file, start, asked.limit, size, complete=complete)
    except OSError:
        return dict(_NOTHING)
    return {"text": text, "offset": start, "next_offset": end, "size": size}


def _begin(file: BinaryIO, offset: int, size: int) -> int:
    """The line that an offset means: the one that it is in, and from the end on the first that begins behind it."""
    at = min(offset, size) if offset >= 0 else max(0, size + offset)
    begins = at if offset >= 0 else _next_line(file, at, size)
    if begins < size:
        return _line_begin(file, begins)
    return size if offset >= 0 else _line_begin(file, at)


def _lines(file: BinaryIO, start: int, limit: int, size: int, *, complete: bool) -> tuple[str, int]:
    """Lines from `start`, which is the beginning of one, and where they end."""
    shown, at = [], start
    while at < size:
        file.seek(at)
        line = file.readline(LONGEST_LINE_BYTES)
        end = at + len(line)
        if not line.endswith(b"\n"):
            end = _next_line(file, end, size)
            if end >= size and not complete:
                break  # its rest is still to be written
        if at > start and end - start > limit:
            break
        fits = end - at <= LONGEST_LINE_BYTES
        text = line.decode("utf-8", "replace") if fits else f"[a line of {end - at:,} bytes is not shown]\n"
        shown.append("".join(redact(part) for part in text.splitlines(keepends=True)))
        at = end
    return "".join(shown), at


def _line_begin(file: BinaryIO, at: int) -> int:
    """Where the line begins that the byte at `at` belongs to."""
    while at > 0:
        step = min(at, _STEP_BYTES)
        file.seek(at - step)
        found = file.read(step).rfind(b"\n")
        if found >= 0:
            return at - step + found + 1
        at -= step
    return 0


def _next_line(file: BinaryIO, at: int, size: int) -> int:
    """The first place at `at` or behind it where a line begins; `size` where there is none."""
    if at == 0:
        return 0
    at -= 1
    file.seek(at)
    while at < size and (block := file.read(_STEP_BYTES)):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return size


_STEP_BYTES = 64 * 1024
