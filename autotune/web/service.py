"""What all operations of one running service share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import TypeVar

from autotune.errors import AutotuneError, ExitCode, UnknownName
from autotune.recipe import NAME_PATTERN
from autotune.records import PickRule
from autotune.report.view import StudyView
from autotune.review.views import view_of
from autotune.store.connection import locate
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.web.feed import Feed
from autotune.web.job_view import queue_document
from autotune.web.pages import static_files
from autotune.web.problems import Refused
from autotune.web.queue import PROGRAM, Queue
from autotune.web.reader import Kept, NoDatabase, Reader
from autotune.web.route import dumped
from autotune.web.security import Buckets
from autotune.web.settings import ServeSettings
from autotune.web.study_figures import FigureBook
from autotune.web.tokens import Sessions

T = TypeVar("T")

log = logging.getLogger("autotune.web")

KEPT_VIEWS = 6
TOLD_ENDED = 5
"""Jobs that have ended, in the event that tells of the queue; GET /api/v1/jobs has all."""


def utc_now() -> datetime:
    """Now, aware, in UTC."""
    return datetime.now(UTC)


class Service:
    """The state of a service, made once for an application.

    Attributes:
        reader: for operations; what takes seconds, and `feed`, have their own, so that they delay nothing else.
        kept: documents of studies by their revision.
    """

    def __init__(
        self,
        settings: ServeSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = utc_now,
        program: tuple[str, ...] = PROGRAM,
    ) -> None:
        self.settings, self.clock, self.now = settings, clock, now
        limits = settings.limits
        migrate = not settings.look_only
        self.reader = Reader(settings.places, "reader", migrate=migrate)
        self._slow_reader = Reader(settings.places, "slow", migrate=migrate)
        self.kept = Kept()
        self.figures = FigureBook()
        self.sessions = Sessions()
        self.calls = Buckets(rate_rps=limits.rate_rps, burst=limits.burst)
        self.logins = Buckets(rate_rps=limits.logins_per_minute / 60, burst=limits.logins_per_minute)
        self.files = static_files()
        self._feed_reader = Reader(settings.places, "feed", migrate=migrate)
        self.queue = Queue(settings, self._feed_reader, now=now, program=program)
        self.feed = Feed(settings.places, self._feed_reader, now=now, most_readers=limits.readers)
        self.creating = asyncio.Lock()
        self.queue.changed = self._queue_changed
        self._views: OrderedDict[tuple[str, str, str, str], StudyView] = OrderedDict()

    async def ask(self, question: Callable[[Store], T], *, empty: T | None = None, slow: bool = False) -> T:
        """A question to the store; `empty` is the answer where there is no database yet.

        Args:
            slow: it takes seconds; then it must not use `view`.

        Raises:
            AutotuneError: of the store.
            Refused: there is no database, and no answer without one.
        """
        try:
            return await (self._slow_reader if slow else self.reader).ask(question)
        except NoDatabase:
            if empty is not None:
                return empty
            raise Refused(
                HTTPStatus.NOT_FOUND,
                "unknown-study",
                "there is no study yet",
                hint="POST /api/v1/studies, or `autotune study`, makes the first one.",
                exit_code=ExitCode.UNKNOWN_STUDY,
            ) from None

    async def study_document(
        self, key: tuple[str, ...], make: Callable[[Store], object], *, study: str, slow: bool = False
    ) -> tuple[str, bytes]:
        """A document of a study, made once for each of its revisions.

        Args:
            key: what tells the document from others of the study.
            make: from the open store.
            slow: it takes seconds.

        Returns:
            Its revision, and the JSON.
        """
        check_study_name(study)

        def question(store: Store) -> tuple[str, bytes]:
            revision = self._revision(store, study)
            whole = (study, *key)
            found = self.kept.get(whole, revision)
            if found is None:
                found = dumped(make(store))
                self.kept.put(whole, revision, found)
            return revision, found

        return await self.ask(question, slow=slow)

    def view(self, store: Store, study: str, *, slo: str | None = None, pick: str | None = None) -> StudyView:
        """A study's view, kept while it does not change; to be called where the store is asked."""
        key = (study, self._revision(store, study), slo or "", pick or "")
        found = self._views.get(key)
        if found is None:
            rule = None if pick is None else PickRule(pick)
            found = self._views[key] = view_of(store, store.study(study), self.settings.places, slo=slo, rule=rule)
        self._views.move_to_end(key)
        while len(self._views) > KEPT_VIEWS:
            self._views.popitem(last=False)
        return found

    def _revision(self, store: Store, study: str) -> str:
        """What a study's documents carry as their ETag: another one as well once its tuner was killed.

        Raises:
            UnknownName: there is no such study.
        """
        found = store.pulses().get(study)
        if found is None:
            store.study(study)  # or it is said which there are
            raise UnknownName("study", study, ())
        killed = found.state == StudyState.RUNNING and self.settings.places.is_left(study)
        return f"{found.revision}-killed" if killed else found.revision

    def _queue_changed(self) -> None:
        self.feed.tell("queue", queue_document(self.queue, most_ended=TOLD_ENDED))
        self.feed.ring()

    async def start(self) -> None:
        """Take over the queue; make the tables of a database that is no file, for a dashboard that starts with it.

        Raises:
            StudyBusy: another service has it.
        """
        if self.settings.look_only:
            return
        await self.queue.start()
        places = self.settings.places
        if places.storage is not None and locate(places.storage).path is None:
            from autotune.store.projection import make_tables  # Optuna, which nothing else here needs at once

            try:
                await asyncio.to_thread(make_tables, places.storage, places.busy_timeout_s)
            except AutotuneError as error:  # its own requests say so, and end when the database is there
                log.warning("the database's tables are not made: %s", error.message)

    async def close(self) -> None:
        """End what was begun: streams first, then what runs on the node, then the store."""
        self.feed.close()
        await self.queue.close()
        await self.feed.stopped()
        await self._feed_reader.close()
        await self.reader.close()
        await self._slow_reader.close()


def check_study_name(name: str) -> None:
    """No other name is ever a study's, whatever path it would make.

    Raises:
        UnknownName: it cannot be one.
    """
    if not NAME_PATTERN.fullmatch(name):
        raise UnknownName("study", name, ())
