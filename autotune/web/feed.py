"""Live progress: one look at the store a second for all who watch, and one piece of text that all of them are sent.

Nothing is looked at while nobody watches. What was told lately lies in one ring of bounded size, from which each stream
sends what it has not sent; a reader that comes back says what it saw last, and one that was away for longer than the
ring holds is told to fetch anew. A reader that does not read is let go, and delays nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from autotune.engine.redaction import redact
from autotune.records import Outcome, Trial
from autotune.report.studies import StudyRow
from autotune.review.listing import study_row
from autotune.search.objective import own_figures
from autotune.store.listing import Tally
from autotune.store.places import Places
from autotune.store.pulses import Pulse
from autotune.store.repository import Store
from autotune.web.reader import NoDatabase, Reader

log = logging.getLogger("autotune.web")

LOOK_S = 1.0
HEARTBEAT_S = 15.0
MOST_KEPT = 2048
KEPT_TEXTS = 16
MOST_OPEN = 64
"""Trials of a study that can be open at once: as many as trials run beside each other."""
LINGER_S = 30.0
"""How long the store is looked at after the last reader went: most of them come back, and miss nothing."""


@dataclass(frozen=True, slots=True)
class Told:
    """An event as it is sent. `study` is None for what concerns all."""

    number: int
    study: str | None
    text: bytes


@dataclass(slots=True)
class _Seen:
    """What was seen of a study last."""

    pulse: Pulse
    row: StudyRow
    open_trials: frozenset[int] = field(default_factory=frozenset)


_New = tuple[str, str | None, dict[str, Any]]
"""An event that nobody was told yet: kind, study, document."""


class Feed:
    """Events since the service began. `begin` is another each time, so that no old id is taken for a new one."""

    def __init__(
        self,
        places: Places,
        reader: Reader,
        *,
        now: Callable[[], datetime],
        most_readers: int,
        look_s: float = LOOK_S,
    ) -> None:
        self._places, self._reader, self._now, self._look_s = places, reader, now, look_s
        self.most_readers = most_readers
        self.begin = secrets.token_hex(4)
        self.readers = 0
        self._ring: deque[Told] = deque(maxlen=MOST_KEPT)
        self._last = 0
        self._seen: dict[str, _Seen] = {}
        self._promotions: int | None = None
        self._bell = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._texts: dict[tuple[int, int, str | None], bytes] = {}
        self.closed = False

    # For streams

    @property
    def position(self) -> int:
        """Of the newest event."""
        return self._last

    def position_of(self, event_id: str | None) -> int | None:
        """Where a reader goes on that saw this id last; None where what it missed is not known any more."""
        if event_id is None:
            return self._last
        begin, _, number = event_id.partition("-")
        if begin != self.begin or not (number.isascii() and number.isdecimal()):
            return None
        seen = int(number)
        return seen if self._first - 1 <= seen <= self._last else None

    @property
    def _first(self) -> int:
        return self._ring[0].number if self._ring else self._last + 1

    def text_after(self, position: int, study: str | None) -> bytes | None:
        """Everything that was told after a position, to be sent as it is; None where some of it is gone."""
        if position < self._first - 1:
            return None
        key = (position, self._last, study)
        found = self._texts.get(key)
        if found is None:
            behind = self._last - position
            newest = list(self._ring)[len(self._ring) - behind :] if behind else []
            found = b"".join(one.text for one in newest if study is None or one.study in (None, study))
            if len(self._texts) >= KEPT_TEXTS:
                self._texts.clear()
            self._texts[key] = found
        return found

    async def news(self) -> None:
        """Until there is something to send, a heartbeat at the latest."""
        await self._bell.wait()

    def enter(self) -> None:
        """A reader has come."""
        self.readers += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch(), name="autotune-feed")

    def leave(self) -> None:
        """A reader has gone."""
        self.readers -= 1

    # For the service

    def tell(self, kind: str, document: Mapping[str, Any], *, study: str | None = None) -> None:
        """An event for whoever watches."""
        self._last += 1
        text = f"id: {self.begin}-{self._last}\nevent: {kind}\ndata: {json.dumps(document)}\n\n"
        self._ring.append(Told(self._last, study, text.encode()))

    def ring(self) -> None:
        """Wake every stream."""
        bell, self._bell = self._bell, asyncio.Event()
        bell.set()

    def close(self) -> None:
        """End every stream."""
        self.closed = True
        self.ring()

    async def stopped(self) -> None:
        """Once nothing looks at the store any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # Looking

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        beat = watched = loop.time()
        trouble = ""
        while not self.closed:
            now = loop.time()
            watched = now if self.readers else watched
            if now - watched > LINGER_S:
                return
            try:
                told = await self.look()
                trouble = ""
            except Exception as error:  # noqa: BLE001 - whatever one look meets, those who watch wait for the next
                told = False
                if trouble != repr(error):  # a line for each trouble, and none for each second of it
                    trouble = repr(error)
                    log.warning("progress cannot be told: %s", redact(trouble))
            if told or now - beat >= HEARTBEAT_S:
                beat = now
                self.ring()
            await asyncio.sleep(self._look_s)

    async def look(self) -> bool:
        """Look at the store once, and tell what is new; whether there was anything."""
        before = self._last
        try:
            found = await self._reader.ask(self._compare)
        except NoDatabase:
            return False
        for kind, study, document in found:
            self.tell(kind, document, study=study)
        return self._last > before

    def _compare(self, store: Store) -> list[_New]:
        """In the reader's thread: what was seen is touched here alone, and the ring in the loop alone.

        Whether SQLite's files have changed would be cheaper to ask, and wrong: a commit is written before it is seen.
        """
        told: list[_New] = []
        first = not self._seen and self._promotions is None
        pulses = store.pulses()
        wanted = [name for name, pulse in pulses.items() if self._may_differ(name, pulse)]
        tallies = store.tallies(wanted) if wanted else {}
        for name in wanted:
            row = study_row(
                store.study(name), tallies.get(name, Tally()), self._places, store.attempts, now=self._now()
            )
            told += self._study(store, row, pulses[name])
        told += self._new_promotions(store, pulses)
        return [] if first else told

    def _may_differ(self, name: str, pulse: Pulse) -> bool:
        seen = self._seen.get(name)
        return seen is None or seen.pulse != pulse or pulse.state == "running" or seen.row.pid is not None

    def _study(self, store: Store, row: StudyRow, pulse: Pulse) -> list[_New]:
        old = self._seen.get(row.name)
        seen = self._seen[row.name] = _Seen(pulse=pulse, row=row)
        told: list[_New] = []
        if old is None or old.pulse != pulse:
            told += self._new_trials(store, old, seen)
        else:
            seen.open_trials = old.open_trials
        if old is None or old.pulse != pulse or _lasting(old.row) != _lasting(row):
            told.append(("study", row.name, {**asdict(row), "revision": pulse.revision}))
        elif (old.row.trial, old.row.phase) != (row.trial, row.phase):
            phase = {"study": row.name, "trial": row.trial, "phase": row.phase, "elapsed_s": row.elapsed_s}
            told.append(("phase", row.name, phase))
        return told

    def _new_trials(self, store: Store, old: _Seen | None, seen: _Seen) -> list[_New]:
        """Trials that were begun or have ended; of a study that was never looked at, only those that may be open."""
        count = seen.pulse.trials
        known = old.pulse.trials if old else max(0, count - MOST_OPEN)
        numbers = sorted({*(old.open_trials if old else ()), *range(known, count)})
        trials = store.trials_of(seen.row.name, numbers)
        seen.open_trials = frozenset(trial.number for trial in trials if trial.result is None)
        new = [trial for trial in trials if trial.result is not None or trial.number >= known]
        return [("trial", seen.row.name, trial_event(seen.row.name, trial, seen.pulse)) for trial in new]

    def _new_promotions(self, store: Store, pulses: Mapping[str, Pulse]) -> list[_New]:
        count = max((pulse.promotions for pulse in pulses.values()), default=0)
        before, self._promotions = self._promotions, count
        if before is None or count <= before:
            return []
        new = store.all_promotions()[before:]
        return [("promotion", None, {"study": one.study, "name": one.details.get("name")}) for one in new]


def _lasting(row: StudyRow) -> tuple[object, ...]:
    """What of a row is worth telling by itself: no phase, which has its own event, and no seconds."""
    return (row.state, row.done, row.wanted, row.measured, row.infeasible, row.pid)


def trial_event(study: str, trial: Trial, pulse: Pulse) -> dict[str, Any]:
    """A trial that began or ended, with the figures that the front is drawn from."""
    figures = own_figures(trial)
    measured = trial.result is not None and trial.result.outcome is Outcome.MEASURED
    rate, ttft = (figures.output_tok_s_per_gpu, figures.ttft_p95_s) if measured else (None, None)
    return {
        "study": study,
        "number": trial.number,
        "outcome": str(trial.result.outcome) if trial.result else "running",
        "output_tok_s_per_gpu": rate.value if rate else None,
        "ttft_p95_s": ttft.value if ttft else None,
        "revision": pulse.revision,
    }
