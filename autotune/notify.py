"""Tells somebody that a study has ended: a command, or a POST to a URL. Whatever fails here harms no study.

Neither the URL's path, query and password nor the command's arguments are ever shown: webhooks carry their secret
there.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import SplitResult, unquote

from autotune import webhook_url

COMMAND_S = 30.0
"""A command that takes longer is killed, with whatever it has started in its process group."""

POST_S = 10.0
TRIES, PAUSE_S = 3, 1.0
"""Of a POST that did not arrive, or was answered with 429 or 5xx."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notices:
    """Who is told.

    Attributes:
        command: argument list, run without a shell, with the summary as JSON on standard input; empty for none.
        url: http or https; the summary is POSTed to it as JSON. None for none.
    """

    command: tuple[str, ...] = field(default=(), repr=False)
    url: str | None = field(default=None, repr=False)


def notify(notices: Notices, summary: Mapping[str, Any], *, sleep: Callable[[float], None] = time.sleep) -> list[str]:
    """Tell everybody; a sentence for each that could not be told."""
    body = json.dumps(summary).encode()
    failed = []
    if notices.command and (why := _run(notices.command, body)) is not None:
        failed.append(f"the notification command {Path(notices.command[0]).name!r} {why}")
    if notices.url is not None and (why := _post(notices.url, body, sleep)) is not None:
        failed.append(f"the notification to {webhook_url.shown(notices.url)} {why}")
    return failed


def _run(command: Sequence[str], body: bytes) -> str | None:
    """What went wrong; None where nothing did. What the command prints is nobody's: standard output is the result's."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return f"cannot be run: {(error.strerror if isinstance(error, OSError) else None) or type(error).__name__}"
    try:
        process.communicate(body, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        return f"did not end within {COMMAND_S:.0f} s and was killed"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return None if process.returncode == 0 else f"ended with status {process.returncode}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A summary is not sent on to where the operator did not send it."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> None:
        del req, fp, code, msg, headers, newurl


def _post(url: str, body: bytes, sleep: Callable[[float], None]) -> str | None:
    """What went wrong; None where nothing did."""
    found = webhook_url.parsed(url)
    if found is None:
        return "cannot be sent: that is no http or https URL"
    request = urllib.request.Request(  # noqa: S310 - the scheme was looked at
        found._replace(netloc=webhook_url.place(found), fragment="").geturl(),
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": "autotune", **_authorization(found)},
    )
    opener = urllib.request.build_opener(_NoRedirects)
    why = "did not arrive"
    for attempt in range(TRIES):
        if attempt:
            sleep(PAUSE_S * 2 ** (attempt - 1))
        try:
            with opener.open(request, timeout=POST_S):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            why = f"was answered with status {error.code}"
            if error.code < 500 and error.code != 429:
                return why
        except Exception as error:  # noqa: BLE001 - whatever a URL, a proxy or a certificate brings; its text may hold the URL
            why = f"did not arrive ({type(getattr(error, 'reason', error)).__name__})"
    return why


def _authorization(found: SplitResult) -> dict[str, str]:
    if found.username is None:
        return {}
    word = f"{unquote(found.username)}:{unquote(found.password or '')}"
    return {"Authorization": f"Basic {base64.b64encode(word.encode()).decode()}"}
