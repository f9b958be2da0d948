"""Operations on the history of promotions."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from autotune.errors import UnknownName
from autotune.promote.history import Entry, before, current_of
from autotune.review.history import history_of
from autotune.review.history_text import diff_document, history_document
from autotune.web.asked import DeploymentPath, DiffQuery, VersionPath
from autotune.web.problems import Refused
from autotune.web.route import Answer, Call
from autotune.web.service import Service

if TYPE_CHECKING:
    from autotune.store.repository import Store


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
