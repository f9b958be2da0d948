"""Fields of logs and traces: which names stand for what, and what their values may be. Pure."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from autotune.errors import InvalidFile

TIME_NAMES = ("timestamp", "timestamp_ms", "arrived_at", "arrival_time", "arrival_timestamp", "time", "created", "ts")
PROMPT_NAMES = (
    "request tokens",
    "contexttokens",
    "context_tokens",
    "prompt_tokens",
    "input_tokens",
    "input_length",
    "num_prefill_tokens",
)
OUTPUT_NAMES = (
    "response tokens",
    "generatedtokens",
    "generated_tokens",
    "completion_tokens",
    "output_tokens",
    "output_length",
    "num_decode_tokens",
)
"""Of BurstGPT, Azure, OpenAI's usage, Mooncake, Vidur; compared without case."""

NO_OUTPUT = "no output (a failed request)"
NO_PROMPT = "no prompt"
"""Why rows are left out."""

MAX_TOKENS = 10_000_000
MAX_SECONDS = 1e11
"""Seconds since 1970 stay below for a thousand years; more is milliseconds or finer, told by powers of 1,000."""


def tokens_of(value: object, *, file: str, where: str) -> int:
    """A number of tokens, 0 included, from JSON or a table's cell.

    Raises:
        InvalidFile: no whole number from 0 to MAX_TOKENS.
    """
    number = value
    if isinstance(value, str):
        try:
            number = float(value.strip()) if len(value) < 40 else None
        except ValueError:
            number = None
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= MAX_TOKENS:
        raise InvalidFile(file, where, value, f"a whole number of tokens from 0 to {MAX_TOKENS:,}")
    return number


def seconds_of(value: object, *, file: str, where: str, milliseconds: bool = False) -> float:
    """A time in seconds on the file's own clock, from a number or a date and time (UTC where it has no zone).

    Args:
        milliseconds: what a bare number counts. Otherwise seconds, unless it is too large for a time of day or of the
            calendar: those are milli-, micro- or nanoseconds since 1970.

    Raises:
        InvalidFile: neither.
    """
    number = value
    if isinstance(value, str):
        text = value.strip()
        try:
            number = float(text)
        except ValueError:
            number = _moment(text)
            milliseconds = False
    if isinstance(number, bool) or not isinstance(number, int | float) or abs(number) > 1e20 or math.isnan(number):
        raise InvalidFile(file, where, value, "seconds, or a date and time such as 2023-11-16 18:17:03.98")
    seconds = float(number)
    if milliseconds:
        return seconds / 1000
    while abs(seconds) > MAX_SECONDS:
        seconds /= 1000
    return seconds


class Ordered:
    """Times must not go backwards: `check` one after the other."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._rows = 0
        self._timed = False
        self._last_s = -math.inf

    def check(self, at_s: float | None, where: str, value: object) -> None:
        """Raises:
        InvalidFile: earlier than the row before, or a time in some rows only.
        """
        if self._rows == 0:
            self._timed = at_s is not None
        elif (at_s is not None) is not self._timed:
            raise InvalidFile(self._file, where, value, "a time in every row or in none")
        self._rows += 1
        if at_s is None:
            return
        if at_s < self._last_s:
            raise InvalidFile(
                self._file,
                where,
                value,
                "a time no earlier than that of the row before",
                hint="Sort the file by arrival time.",
            )
        self._last_s = at_s


def _moment(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None
