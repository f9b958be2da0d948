"""Who is kept out, how often, and what every answer carries."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from web_service import STUDY, serving, studies_in

from autotune.engine.redaction import redact
from autotune.errors import InvalidFile, InvalidOption
from autotune.store.places import Places
from autotune.web import route, tokens
from autotune.web.app import make_app
from autotune.web.pages import STATIC
from autotune.web.problems import Refused
from autotune.web.running import OneLine, is_ours, runner_of
from autotune.web.security import HEADERS, Buckets, check_host, check_site, host_name
from autotune.web.settings import Limits, ServeSettings, is_loopback

API = "/api/v1"
TOKEN = tokens.new_token()
BEARER = {"Authorization": f"Bearer {TOKEN}"}


def settings_in(folder: Path, **more: Any) -> ServeSettings:
    return ServeSettings(places=Places(root=folder / "studies"), token_hashes=(tokens.hashed(TOKEN),), **more)


def held_by(folder: Path, text: str) -> list[Path]:
    """The files that hold a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class TestTokens:
    @pytest.mark.parametrize(
        "path", [f"{API}/studies", f"{API}/events", "/metrics", f"{API}/openapi.json", f"{API}/no"]
    )
    async def test_nothing_is_told_without_one(self, tmp_path: Path, path: str) -> None:
        async with serving(settings_in(tmp_path)) as client, client.client.get(path) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="autotune"'
            assert (await answer.json())["type"] == "urn:autotune:problem:no-token"

    async def test_the_page_sends_to_the_login_which_needs_none(self, tmp_path: Path) -> None:
        async with serving(settings_in(tmp_path)) as client:
            async with client.client.get("/studies/x?a=1", allow_redirects=False) as answer:
                assert (answer.status, answer.headers["Location"]) == (303, "/login?next=/studies/x")
            for path in ("/login", "/healthz", f"{API}/session"):
                assert (await client.get(path))[0] == 200
            assert (await client.get(f"{API}/session"))[1]["authenticated"] is False

    async def test_a_program_sends_it_with_each_request(self, tmp_path: Path) -> None:
        async with serving(settings_in(tmp_path)) as client:
            assert (await client.get(f"{API}/studies", headers=BEARER))[0] == 200
            for wrong in (TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "", "x" * 9000):
                assert (await client.get(f"{API}/studies", headers={"Authorization": f"Bearer {wrong}"}))[0] in (
                    400,
                    401,
                )

    async def test_a_page_shows_it_once_and_has_a_session(self, tmp_path: Path) -> None:
        clock = Clock()
        async with serving(settings_in(tmp_path), clock=clock) as client:
            status, found = await client.post(f"{API}/session", {"token": "wrong"})
            assert (status, found["type"]) == (401, "urn:autotune:problem:wrong-token")
            async with client.client.post(f"{API}/session", json={"token": TOKEN}) as answer:
                assert answer.status == 204
                cookie = answer.cookies[tokens.COOKIE]
            assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Strict", "/")
            assert TOKEN not in cookie.value
            assert (await client.get(f"{API}/studies"))[0] == 200  # the client keeps cookies
            assert (await client.get(f"{API}/session"))[1]["authenticated"] is True
            clock.now += tokens.SESSION_S + 1
            assert (await client.get(f"{API}/studies"))[0] == 401

    async def test_a_session_ends_when_it_is_told_to(self, tmp_path: Path) -> None:
        async with serving(settings_in(tmp_path, secure_cookie=True)) as client:
            async with client.client.post(f"{API}/session", json={"token": TOKEN}) as answer:
                cookie = answer.cookies[tokens.COOKIE]
            assert cookie["secure"] is True
            sent = {"Cookie": f"{tokens.COOKIE}={cookie.value}", "X-Autotune": "1"}
            assert (await client.get(f"{API}/studies", headers=sent))[0] == 200
            assert (await client.send("DELETE", f"{API}/session", headers=sent))[0] == 204
            assert (await client.get(f"{API}/studies", headers=sent))[0] == 401

    async def test_wrong_ones_are_taken_so_often_and_then_even_the_right_one_waits(self, tmp_path: Path) -> None:
        clock = Clock()
        limits = Limits(logins_per_minute=3)
        async with serving(settings_in(tmp_path, limits=limits), clock=clock) as client:
            tries = [(await client.post(f"{API}/session", {"token": "wrong"}))[0] for _ in range(4)]
            assert tries == [401, 401, 401, 429]
            assert (await client.get(f"{API}/studies", headers=BEARER))[0] == 429
            clock.now += 20.0
            assert (await client.get(f"{API}/studies", headers=BEARER))[0] == 200

    async def test_it_is_nowhere_in_what_is_kept_logged_or_shown(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        settings = settings_in(tmp_path)
        async with serving(settings) as client:
            await client.post(f"{API}/session", {"token": TOKEN})
            _, bad = await client.post(f"{API}/session", {"token": TOKEN, "x": TOKEN})
            _, worse = await client.post(f"{API}/session", {"token": [TOKEN]})
            assert TOKEN not in json.dumps(bad["errors"][0]["key"])
        assert TOKEN not in json.dumps(worse)
        assert TOKEN not in caplog.text + repr(settings)
        assert not held_by(tmp_path, TOKEN)

    def test_the_file_holds_a_hash_that_its_owner_alone_reads(self, tmp_path: Path) -> None:
        file = tmp_path / "a" / "token"
        tokens.write_token_file(file, TOKEN)
        assert tokens.read_token_file(file) == (tokens.hashed(TOKEN),)
        assert TOKEN not in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        file.write_text(f"# old\n{tokens.hashed('a')}\n{tokens.hashed('b')} # new\n")
        assert tokens.read_token_file(file) == (tokens.hashed("a"), tokens.hashed("b"))

    @pytest.mark.parametrize(
        "content",
        ["", TOKEN, f"{tokens.hashed('a')} {TOKEN}", "sha256:12", "# nothing\n"],
        ids=["empty", "token", "token-behind-a-hash", "short", "comment"],
    )
    def test_a_file_that_holds_the_token_itself_is_refused_and_not_shown(self, tmp_path: Path, content: str) -> None:
        file = tmp_path / "token"
        file.write_text(content)
        with pytest.raises(InvalidFile) as caught:
            tokens.read_token_file(file)
        assert TOKEN not in str(caught.value)

    def test_one_that_is_short_keeps_nobody_out(self) -> None:
        assert tokens.token_of_environment("x" * 32) == tokens.hashed("x" * 32)
        with pytest.raises(InvalidOption, match="AUTOTUNE_TOKEN") as caught:
            tokens.token_of_environment("x" * 31)
        assert redact(str(caught.value)) == str(caught.value), "that nothing is shown is said in whole"

    def test_old_sessions_make_room_for_new_ones(self) -> None:
        sessions = tokens.Sessions()
        first = sessions.begin(0.0)
        assert sessions.is_open(first, 1.0)
        for _ in range(tokens.MOST_SESSIONS):
            last = sessions.begin(0.0)
        assert not sessions.is_open(first, 1.0)
        assert sessions.is_open(last, 1.0)


class TestHosts:
    @pytest.mark.parametrize(
        "host", ["localhost", "localhost:8321", "127.0.0.1:9", "[::1]:8321", "192.168.1.7:8321", "node7", "NODE7.:80"]
    )
    def test_addresses_and_names_that_were_allowed_are_answered(self, host: str) -> None:
        check_host(host, ("node7",))

    @pytest.mark.parametrize(
        "host",
        [
            *("", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8321", "a@localhost"),
            *("localhost:x", "[::1", "localhost/", "[localhost]x", "127.0.0.1\\x", "x" * 500),
        ],
    )
    def test_names_that_a_stranger_may_have_led_here_are_not(self, host: str) -> None:
        with pytest.raises(Refused) as caught:
            check_host(host, ("node7",))
        assert caught.value.status == 421

    async def test_the_service_looks_before_it_does_anything(self, tmp_path: Path) -> None:
        async with serving(settings_in(tmp_path)) as client:
            for path in ("/", "/healthz", f"{API}/session", "/static/x.js"):
                status, found = await client.get(path, headers={"Host": "evil.example"})
                assert (status, found["type"]) == (421, "urn:autotune:problem:unknown-host")

    def test_only_this_machine_is_the_loopback(self) -> None:
        assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
        assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example", "localhost.example", "")))


class TestOtherSites:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "https://evil.example"},
            {"Origin": "null"},
            {"Origin": "http://localhost:8000"},
            {"Origin": "http://localhost"},
            {"Origin": "localhost:8321"},
            {"Origin": "ftp://localhost:8321"},
            {"Origin": "http://localhost:8321@evil.example"},
        ],
    )
    def test_their_pages_neither_change_nor_read_anything(self, headers: dict[str, str]) -> None:
        for changes in (True, False):
            with pytest.raises(Refused) as caught:
                check_site({**headers, "Content-Type": "application/json"}, "localhost:8321", changes=changes)
            assert caught.value.status == 403

    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": "application/json; charset=utf-8"},
            {"X-Autotune": "1"},
            {"Content-Type": "application/json", "Origin": "http://localhost:8321", "Sec-Fetch-Site": "same-origin"},
            {"Content-Type": "application/json", "Sec-Fetch-Site": "none"},
        ],
    )
    def test_our_page_and_programs_do(self, headers: dict[str, str]) -> None:
        check_site(headers, "localhost:8321", changes=True)

    @pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
    def test_a_form_does_not(self, kind: str) -> None:
        with pytest.raises(Refused, match="needs"):
            check_site({"Content-Type": kind} if kind else {}, "localhost:8321", changes=True)

    @pytest.mark.parametrize("host", ["localhost", "localhost:80"])
    def test_the_default_port_may_be_left_out(self, host: str) -> None:
        check_site({"X-Autotune": "1", "Origin": "http://localhost"}, host, changes=True)

    async def test_the_service_looks(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=studies_in(tmp_path))) as client:
            for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
                assert (await client.get(f"{API}/studies", headers=headers))[0] == 403
                assert (await client.post(f"{API}/studies/{STUDY}/stop", headers=headers))[0] == 403
                assert (await client.get("/", headers=headers))[0] == 200  # a link may lead to the page
            assert (await client.send("POST", f"{API}/studies/{STUDY}/stop", data="now=true"))[0] == 403


class TestLimits:
    async def test_a_long_body_is_refused(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=Places(root=tmp_path), limits=Limits(body_bytes=2000))) as client:
            status, found = await client.post(f"{API}/studies", {"model": "x" * 3000})
            assert (status, found["type"]) == (413, "urn:autotune:problem:body-too-large")

    async def test_a_body_that_says_that_it_will_be_long_is_not_waited_for(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.client.port)
            writer.write(
                f"POST {API}/studies HTTP/1.1\r\nHost: 127.0.0.1:{client.client.port}\r\nConnection: close\r\n"
                "Content-Type: application/json\r\nContent-Length: 999999999\r\n\r\n".encode()
            )
            assert b" 413 " in await asyncio.wait_for(reader.readline(), route.BODY_S / 2)
            writer.close()

    async def test_an_address_asks_so_often(self, tmp_path: Path) -> None:
        clock = Clock()
        limits = Limits(rate_rps=2.0, burst=3)
        async with serving(ServeSettings(places=Places(root=tmp_path), limits=limits), clock=clock) as client:
            assert [(await client.get("/healthz"))[0] for _ in range(4)] == [200, 200, 200, 429]
            async with client.client.get("/healthz") as answer:
                assert answer.headers["Retry-After"] == "1"
            clock.now += 0.5
            assert [(await client.get("/healthz"))[0] for _ in range(2)] == [200, 429]

    def test_addresses_do_not_share_and_are_not_remembered_for_ever(self) -> None:
        buckets = Buckets(rate_rps=1.0, burst=1, most=2)
        assert [buckets.wait_s(address, 0.0) for address in ("a", "b", "a")] == [0.0, 0.0, 1.0]
        buckets.wait_s("c", 0.0)
        assert len(buckets._found) == 2

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            (b"{", 400),
            (b'{"model": NaN}', 400),
            (b'{"model": 1e999}', 400),
            (b'{"model": "a", "model": "b"}', 400),
            (b"[" * 60000, 400),
            (b"\xff\xfe{}", 400),
            (b"[]", 422),
            (b"null", 422),
        ],
    )
    async def test_what_is_no_json_object_is_refused(self, tmp_path: Path, body: bytes, status: int) -> None:
        async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
            sent = {"data": body, "headers": {"Content-Type": "application/json"}}
            assert (await client.send("POST", f"{API}/studies", **sent))[0] == status

    async def test_an_encoded_body_is_refused(self, tmp_path: Path) -> None:
        async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
            sent = {"data": b"no gzip", "headers": {"Content-Type": "application/json", "Content-Encoding": "gzip"}}
            status, found = await client.send("POST", f"{API}/studies", **sent)
        assert (status, found["type"]) == (415, "urn:autotune:problem:unsupported-media-type")

    async def test_a_body_that_is_held_back_is_not_waited_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(route, "BODY_S", 0.05)
        async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
            address = client.client.server
            reader, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(
                b"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: 100\r\n\r\n{"
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 408 ")
            writer.close()


@asynccontextmanager
async def as_run(folder: Path) -> AsyncIterator[int]:
    """The service behind what `autotune serve` runs it with; its port."""
    runner = runner_of(make_app(settings_in(folder)))
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


GZIP = gzip.compress(b'{"model": "x"}')
ENCODED = {
    "whole": (b"Content-Encoding: gzip\r\nContent-Length: %d" % len(GZIP), GZIP),
    "cut": (b"Content-Encoding: gzip\r\nContent-Length: %d" % (len(GZIP) - 6), GZIP[:-6]),
    "no gzip": (b"Content-Encoding: gzip\r\nContent-Length: 7", b"no gzip"),
    "deflate": (b"Content-Encoding: deflate\r\nTransfer-Encoding: chunked", b"7\r\nno gzip\r\n0\r\n\r\n"),
}
"""The rest of a head, and the body, which is sent once the head was answered."""


@pytest.mark.parametrize(
    ("token", "sent", "status"),
    [
        *(pytest.param(TOKEN, sent, b"415", id=f"encoded: {name}") for name, sent in ENCODED.items()),
        *(pytest.param("wrong", sent, b"401", id=f"not asked for: {name}") for name, sent in ENCODED.items()),
    ],
)
async def test_a_body_that_nobody_wants_is_no_event_of_the_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, token: str, sent: tuple[bytes, bytes], status: bytes
) -> None:
    head, body = sent
    async with as_run(tmp_path) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        line = b"POST /api/v1/studies HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        writer.write(line + b"Authorization: Bearer " + token.encode() + b"\r\n" + head + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == status
        # What follows is answered once the body was taken in and thrown away; or nothing more is.
        writer.write(body + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        with suppress(ConnectionError):
            await asyncio.wait_for(reader.read(), 10)
        writer.close()
    assert [record.getMessage() for record in caplog.records if is_ours(record)] == []


def test_the_log_of_the_service_has_a_line_for_each_record() -> None:
    token = "hf_" + "Q7" * 17
    try:
        raise ValueError(f"bad\n{token}")
    except ValueError as error:
        record = logging.LogRecord(
            "aiohttp.server", 40, "x.py", 1, "one %s", ("two\nthree",), (ValueError, error, None)
        )
    assert OneLine().format(record) == "autotune: one two three: ValueError('bad\\n<redacted>')"


async def test_every_answer_carries_the_headers(tmp_path: Path) -> None:
    async with serving(settings_in(tmp_path)) as client:
        for path in ("/", "/login", "/healthz", f"{API}/studies", f"{API}/none", "/static/none", f"{API}/openapi.json"):
            async with client.client.get(path, allow_redirects=False) as answer:
                assert HEADERS.items() <= dict(answer.headers).items()
                assert answer.headers["Server"] == "autotune"
        async with client.client.get(f"{API}/events", headers=BEARER) as answer:
            assert HEADERS.items() <= dict(answer.headers).items()


@pytest.mark.parametrize("path", ["/", "/healthz", f"{API}/studies", f"{API}/none", "/static/page.css"])
async def test_an_expectation_that_nobody_meets_is_a_problem(tmp_path: Path, path: str) -> None:
    async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
        async with client.client.get(path, headers={"Expect": "a miracle"}) as answer:
            assert answer.status == 417
            assert answer.content_type == "application/problem+json"
            assert HEADERS.items() <= dict(answer.headers).items()
            found = await answer.json()
        assert found["type"] == "urn:autotune:problem:expectation-failed"
        assert found["detail"] == "Unknown Expect: a miracle"


async def test_a_page_file_is_whole_whatever_range_is_asked_for_and_not_sent_twice(tmp_path: Path) -> None:
    async with serving(ServeSettings(places=Places(root=tmp_path))) as client:
        async with client.client.get("/static/page.css", headers={"Range": "bytes=99999999-"}) as answer:
            assert answer.status == 200
            assert len(await answer.read()) == (STATIC / "page.css").stat().st_size
            etag = answer.headers["ETag"]
        async with client.client.get("/static/page.css", headers={"If-None-Match": etag}) as answer:
            assert answer.status == 304
        assert (await client.send("POST", "/static/page.css", headers={"X-Autotune": "1"}))[0] == 405


async def test_an_error_of_ours_tells_its_kind_and_nothing_of_the_inside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(ServeSettings(places=Places(root=tmp_path))) as client:

        def broken(*_: object, **__: object) -> None:
            raise RuntimeError("hf_" + "a" * 34)

        setattr(client.service, "ask", broken)  # noqa: B010 - what no request can cause
        status, found = await client.get(f"{API}/studies")
    assert status == 500
    assert found["detail"] == "internal error (RuntimeError); the service's log says more"
    assert "RuntimeError" in caplog.text
    assert "a" * 34 not in caplog.text


def test_names_in_hosts_are_compared_in_small_letters() -> None:
    assert host_name("LocalHost:80") == "localhost"
