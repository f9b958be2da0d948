"""Notifications arrive, fail quietly, and never show what may be a secret."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from autotune import notify as module
from autotune import webhook_url
from autotune.errors import InvalidFile, InvalidOption
from autotune.notify import Notices, notify
from autotune.recipe import Recipe, compose, parse_command, read_study_file

SUMMARY = {"study": "s", "ended_by": "trials", "front": [1, 2], "text": "ü"}
SECRET = "T0p-S3cret"


def no_sleep(seconds: float) -> None:
    del seconds


@contextmanager
def webhook(*answers: int, location: str | None = None) -> Iterator[tuple[str, list[tuple[str, str | None, bytes]]]]:
    """A server on the loopback; its address, and path, authorization and body of each request."""
    seen: list[tuple[str, str | None, bytes]] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Authorization"], body))
            self.send_response(left.pop(0) if left else 200)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", seen
        finally:
            server.shutdown()
            thread.join()


def test_a_command_gets_the_summary_and_its_arguments_as_they_are(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    script = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read() + sys.argv[2].encode())"
    odd = "$(touch x); `id` ' \" *"
    assert notify(Notices(command=(sys.executable, "-c", script, str(out), odd)), SUMMARY) == []
    written = out.read_text()
    assert json.loads(written.removesuffix(odd)) == SUMMARY
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("/no/such/program", SECRET), "'program' cannot be run: No such file"),
        ((sys.executable, "-c", "raise SystemExit(7)", SECRET), "ended with status 7"),
        ((sys.executable, "-c", "import sys; sys.stdin.close()", SECRET), None),
    ],
)
def test_a_command_that_fails_is_one_sentence(command: Sequence[str], why: str | None) -> None:
    told = notify(Notices(command=tuple(command)), SUMMARY | {"long": "x" * 200_000})
    assert SECRET not in " ".join(told)
    if why is None:
        assert told == []
    else:
        (text,) = told
        assert why in text


def test_a_command_that_never_ends_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMAND_S", 0.2)
    (text,) = notify(Notices(command=(sys.executable, "-c", "import time; time.sleep(600)")), SUMMARY)
    assert "was killed" in text


def test_a_url_gets_the_summary_posted() -> None:
    with webhook() as (host, seen):
        assert notify(Notices(url=f"http://us%40er:{SECRET}@{host}/hook?token={SECRET}#x"), SUMMARY) == []
    ((path, authorization, body),) = seen
    assert path == f"/hook?token={SECRET}"
    assert authorization == "Basic dXNAZXI6VDBwLVMzY3JldA=="  # us@er:T0p-S3cret
    assert json.loads(body) == SUMMARY


@pytest.mark.parametrize(("answers", "requests", "told"), [((503, 200), 2, 0), ((503,) * 9, 3, 1), ((404,), 1, 1)])
def test_a_url_is_tried_again_where_that_may_help(answers: tuple[int, ...], requests: int, told: int) -> None:
    with webhook(*answers) as (host, seen):
        failed = notify(Notices(url=f"http://{host}/{SECRET}"), SUMMARY, sleep=no_sleep)
    assert (len(seen), len(failed)) == (requests, told)
    assert all(SECRET not in text and f"http://{host}" in text and str(answers[-1]) in text for text in failed)


def test_a_redirect_is_not_followed() -> None:
    with webhook() as (other, elsewhere), webhook(302, location=f"http://{other}/") as (host, _):
        (text,) = notify(Notices(url=f"http://{host}/"), SUMMARY, sleep=no_sleep)
    assert "status 302" in text
    assert elsewhere == []


def test_nobody_there_is_one_sentence() -> None:
    with webhook() as (host, _):
        pass
    (text,) = notify(Notices(url=f"http://{host}/{SECRET}"), SUMMARY, sleep=no_sleep)
    assert "did not arrive (ConnectionRefusedError)" in text
    assert SECRET not in text


@pytest.mark.parametrize(
    "url", ["", "ftp://h/x", "http://?", "https://h:99999/", "http://h/\nx", "file:///etc/passwd", "h/x"]
)
def test_what_is_no_url_is_refused_before_a_study_and_not_shown(url: str) -> None:
    assert webhook_url.parsed(url) is None
    with pytest.raises(InvalidOption) as refused:
        compose({}, {"model": "m", "notify_url": url + SECRET if url else url})
    assert SECRET not in str(refused.value)


def test_a_url_shows_no_more_than_where_it_leads() -> None:
    assert webhook_url.shown(f"https://u:{SECRET}@[::1]:8443/{SECRET}?{SECRET}#{SECRET}") == "https://[::1]:8443"
    url = f"https://hooks.example/{SECRET}"
    recipe = Recipe(name="n", model="m", notify_url=url, notify_command=("curl", url))
    assert SECRET not in repr(recipe) + repr(Notices(url=url, command=("curl", url)))


def test_a_study_file_with_a_wrong_word_does_not_show_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"notify_command: curl https://hooks.example/{SECRET}\n")
    with pytest.raises(InvalidFile, match="notify_command") as refused:
        read_study_file(tmp_path / "s.yaml")
    assert SECRET not in str(refused.value)


def test_commands_are_split_as_a_shell_would_and_run_by_none() -> None:
    assert parse_command("notify 'a b' $HOME \"x;y\"", "--notify-command") == ("notify", "a b", "$HOME", "x;y")
    for text in ("", "  ", "a 'b", "''", "a\0b"):
        with pytest.raises(InvalidOption):
            parse_command(text, "--notify-command")
