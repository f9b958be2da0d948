"""Times of requests in the access log of a web server in front of vLLM (common and combined format: nginx, Apache).

Such a log says when requests came and nothing of their lengths. Apache writes when a request came (%t), nginx when its
answer ended ($time_local): the rate is the same, and bursts are blurred by how long answers take.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from autotune.errors import InvalidFile
from autotune.load.counts import dispersion_of, rate_of
from autotune.records import Estimate

MOST_LINES = 1_000_000
BINS = 60
_LINE = re.compile(
    rb'\[(?P<at>\d{2}/[A-Z][a-z]{2}/\d{4}:\d{2}:\d{2}:\d{2} [+-]\d{4})\] "POST (?P<path>[^" ]+)[^"]*" (?P<status>\d{3})'
)
_COMPLETIONS = re.compile(rb"/(?:chat/)?completions(?:\?|$)")
_ALLOWED = "an access log in common or combined format, with POST requests to /v1/chat/completions or /v1/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessLog:
    """When the answered requests of a log came; seconds as fine as the log has them, which is one."""

    requests: int
    seconds: float
    rate_rps: Estimate
    dispersion: Estimate | None


def is_access_log(path: Path) -> bool:
    """Whether one of the first lines is one of an access log."""
    try:
        with _opened(path) as stream:
            return any(_LINE.search(line) for line, _ in zip(stream, range(20), strict=False))
    except (OSError, EOFError, zlib.error):
        return False


def read_access_log(path: Path) -> AccessLog:
    """The times of its answered requests.

    Raises:
        InvalidFile: it cannot be read, or has no two such requests at different times.
    """
    times: list[float] = []
    try:
        with _opened(path) as stream:
            for number, line in enumerate(stream, start=1):
                if number > MOST_LINES:
                    raise InvalidFile(str(path), f"line {number:,}", "one line more", f"at most {MOST_LINES:,} lines")
                found = _LINE.search(line)
                if found and found["status"].startswith(b"2") and _COMPLETIONS.search(found["path"]):
                    times.append(datetime.strptime(found["at"].decode(), "%d/%b/%Y:%H:%M:%S %z").timestamp())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise InvalidFile(str(path), "", str(error), _ALLOWED) from None
    times.sort()
    # The last second counts whole, as the first does.
    seconds = times[-1] - times[0] + 1.0 if times else 0.0
    if seconds < 2:
        raise InvalidFile(str(path), "", f"{len(times)} answered requests within {seconds:.0f} s", _ALLOWED)
    width = max(1.0, round(seconds / BINS))
    counts = [0] * int(seconds // width)
    for at in times:
        place = int((at - times[0]) // width)
        if place < len(counts):  # the rest of a bin at the end is left out
            counts[place] += 1
    dispersion = dispersion_of(counts, [width] * len(counts))
    return AccessLog(
        requests=len(times), seconds=seconds, rate_rps=rate_of(len(times), seconds, dispersion), dispersion=dispersion
    )


@contextmanager
def _opened(path: Path) -> Iterator[Iterable[bytes]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rb") as stream:
            yield stream
    else:
        with path.open("rb") as plain:
            yield plain
