"""Live progress: who watches is told once, in order, and pays for nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from web_service import STUDY, Client, serving, studies_in

from autotune.records import ClockKind, Config, Origin, Outcome, TrialResult
from autotune.store.places import Places
from autotune.web.feed import MOST_KEPT, Feed
from autotune.web.reader import Reader
from autotune.web.settings import Limits, ServeSettings

API = "/api/v1"
MEASURED = TrialResult(outcome=Outcome.MEASURED, clock=ClockKind.WALL, simulated=False)


def begin(client: Client) -> Any:
    return client.service.ask(
        lambda store: store.begin_trial(STUDY, config=Config.of({"max-num-seqs": 7}), origin=Origin.SAMPLER, gpus=1)
    )


def end(client: Client, number: int) -> Any:
    return client.service.ask(lambda store: store.finish_trial(STUDY, number, MEASURED))


class Stream:
    """An open stream, read event by event."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.last_id: str | None = None

    async def event(self) -> tuple[str, Any]:
        """The next one that is no comment."""
        kind, data = "", ""
        async with asyncio.timeout(120):
            while True:
                line = (await self.answer.content.readline()).decode().rstrip("\n")
                if line.startswith("id: "):
                    self.last_id = line[4:]
                elif line.startswith("event: "):
                    kind = line[7:]
                elif line.startswith("data: "):
                    data = line[6:]
                elif not line and kind:
                    return kind, json.loads(data)


@asynccontextmanager
async def stream(client: Client, path: str = "/events", **options: Any) -> AsyncIterator[Stream]:
    async with client.client.get(API + path, **options) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        assert await answer.content.readline() == b"retry: 2000\n"
        yield Stream(answer)


async def looked(client: Client) -> None:
    """Once the feed has looked for the first time: what is there already is told to nobody."""
    async with asyncio.timeout(120):
        while not client.service.feed._seen:
            await asyncio.sleep(0.01)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with serving(ServeSettings(places=studies_in(tmp_path))) as found:
        found.service.feed._look_s = 0.02
        yield found


async def test_a_trial_is_told_when_it_begins_and_when_it_ends(client: Client) -> None:
    async with stream(client) as all_of_it, stream(client, f"/studies/{STUDY}/events") as own:
        await looked(client)
        trial = await begin(client)
        for one in (all_of_it, own):
            kind, told = await one.event()
            assert (kind, told["study"], told["number"], told["outcome"]) == ("trial", STUDY, trial.number, "running")
            kind, told = await one.event()
            assert (kind, told["name"]) == ("study", STUDY)
        await end(client, trial.number)
        kind, told = await all_of_it.event()
        assert (kind, told["outcome"], told["output_tok_s_per_gpu"]) == ("trial", "measured", None)
        kind, row = await all_of_it.event()
        _, listed = await client.get(f"{API}/studies")
        assert kind == "study"
        assert row == {key: listed["studies"][0][key] for key in row}


async def test_a_database_by_url_is_asked_each_time(tmp_path: Path) -> None:
    places = studies_in(tmp_path)
    by_url = Places(root=places.root, storage=f"sqlite:///{places.database}")
    async with serving(ServeSettings(places=by_url)) as client:
        client.service.feed._look_s = 0.02
        async with stream(client) as found:
            await looked(client)
            await asyncio.sleep(0.1)  # several looks
            await begin(client)
            assert (await found.event())[0] == "trial"


async def test_who_comes_back_is_told_what_was_missed_and_nothing_twice(client: Client) -> None:
    async with stream(client) as first:
        await looked(client)
        trial = await begin(client)
        await first.event()
        seen = first.last_id
    await end(client, trial.number)
    async with stream(client, headers={"Last-Event-ID": seen or ""}) as again:
        kinds = [await again.event() for _ in range(3)]
    assert [(kind, told.get("outcome")) for kind, told in kinds] == [
        ("study", None),
        ("trial", "measured"),
        ("study", None),
    ]


@pytest.mark.parametrize("seen", ["0-1", "", "x", "00000000-99", "9" * 60])
async def test_who_saw_what_nobody_knows_is_told_to_fetch_anew(client: Client, seen: str) -> None:
    async with client.client.get(f"{API}/events?last_event_id={seen}") as answer:
        text = await answer.content.readuntil(b"\n\n")
        if seen:
            text += await answer.content.readuntil(b"\n\n")
    assert (b"event: reset" in text) is bool(seen)


async def test_so_many_may_watch(tmp_path: Path) -> None:
    settings = ServeSettings(places=studies_in(tmp_path), limits=Limits(readers=1))
    async with serving(settings) as client:
        async with stream(client):
            status, found = await client.get(f"{API}/events")
            assert (status, found["type"]) == (503, "urn:autotune:problem:too-many-readers")
        async with asyncio.timeout(120):
            while client.service.feed.readers:
                client.service.feed.ring()  # it is noticed when it is written to
                await asyncio.sleep(0.01)
        async with stream(client):
            pass


async def test_streams_end_with_the_service(tmp_path: Path) -> None:
    async with serving(ServeSettings(places=studies_in(tmp_path))) as client:
        answer = await client.client.get(f"{API}/events")
        client.service.feed.close()
        async with asyncio.timeout(120):
            await answer.content.read()


async def test_nothing_is_looked_at_while_nobody_watches(client: Client) -> None:
    assert client.service.feed._task is None
    async with stream(client):
        await looked(client)
    assert client.service.feed._task is not None


class TestRing:
    """Bounded whatever happens."""

    def feed(self, folder: Path) -> Feed:
        places = Places(root=folder)
        return Feed(places, Reader(places, "test"), now=lambda: datetime.now(UTC), most_readers=1)

    async def test_it_forgets_the_oldest_and_says_so(self, tmp_path: Path) -> None:
        feed = self.feed(tmp_path)
        for number in range(MOST_KEPT + 10):
            feed.tell("x", {"n": number})
        assert feed.position == MOST_KEPT + 10
        assert feed.text_after(9, None) is None
        kept = feed.text_after(10, None)
        assert kept is not None
        assert kept.count(b"event: x") == MOST_KEPT
        assert feed.position_of(f"{feed.begin}-9") is None
        assert feed.position_of(f"{feed.begin}-10") == 10
        assert feed.position_of(f"{feed.begin}-{MOST_KEPT + 11}") is None

    async def test_one_text_serves_all_who_stand_at_the_same_place(self, tmp_path: Path) -> None:
        feed = self.feed(tmp_path)
        feed.tell("x", {"n": 1}, study="a")
        feed.tell("x", {"n": 2}, study="b")
        feed.tell("x", {"n": 3})
        whole = feed.text_after(0, None)
        assert whole is feed.text_after(0, None)
        own = feed.text_after(0, "a")
        assert own is not None
        assert (b'"n": 1' in own, b'"n": 2' in own, b'"n": 3' in own) == (True, False, True)
        assert feed.text_after(3, None) == b""


@pytest.fixture
def broken(tmp_path: Path) -> Places:
    """A folder whose database is none."""
    places = Places(root=tmp_path)
    Path(places.database).write_bytes(b"no database at all " * 200)
    return places


async def test_a_database_that_stays_broken_is_logged_once(broken: Places, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(broken, "feed")
    looks = 0

    async def look() -> bool:
        nonlocal looks
        looks += 1
        return await Feed.look(feed)

    feed = Feed(broken, reader, now=lambda: datetime.now(UTC), most_readers=1, look_s=0.001)
    setattr(feed, "look", look)  # noqa: B010 - counted
    feed.enter()
    async with asyncio.timeout(120):
        while looks < 4:
            await asyncio.sleep(0.01)
    feed.close()
    await feed.stopped()
    await reader.close()
    assert caplog.text.count("progress cannot be told") == 1
