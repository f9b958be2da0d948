"""What the command line says in words of its own: loads, times, shares, addresses. Each has one error."""

from __future__ import annotations

import math
import re
import shlex

from autotune.errors import NOT_SHOWN, InvalidOption
from autotune.recipe.asked import AUTO_PARALLEL, MOST_PARALLEL, LoadChoice

_PORT = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"
ADDRESS = rf"^(auto|(?:[A-Za-z0-9.-]{{1,253}}|\[[0-9A-Fa-f:]{{2,45}}\]):{_PORT})$"
"""Of a cluster's head; ports from 1 to 65535."""


MOST_CONCURRENCY, MOST_RATE_RPS, MOST_REQUESTS = 65_536, 1e6, 10_000_000
"""Of one level and GPU: far above what a server takes, low enough not to exhaust the machine that sends them."""


MOST_TIME_S = 90 * 86400.0
MOST_GPU_HOURS = 1e6
LEAST_GAIN, MOST_GAIN = 1e-6, 1.0


def parse_gpus(text: str) -> tuple[int, ...]:
    """`0,1` as indices.

    Raises:
        InvalidOption: not a comma-separated list of different non-negative integers.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts) or len(set(parts)) != len(parts):
        raise InvalidOption("--gpus", text, "different GPU indices separated by commas, such as 0,1")
    return tuple(int(part) for part in parts)


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """`a,b` as names.

    Raises:
        InvalidOption: an empty name, or one that is there twice.
    """
    names = tuple(part.strip() for part in text.split(","))
    if not all(names) or len(set(names)) != len(names):
        raise InvalidOption(option, text, "different names separated by commas")
    return names


def parse_trials(text: str) -> tuple[int, bool]:
    """`24` as (24, False); `+10` as (10, True): ten more than the study has.

    Raises:
        InvalidOption: neither.
    """
    match = re.fullmatch(r"(\+?)(\d{1,6})", text.strip())
    if not match or int(match[2]) < 1:
        raise InvalidOption("--trials", text, "a positive number, or +N to extend a finished study by N")
    return int(match[2]), bool(match[1])


def parse_time(text: str, option: str) -> float:
    """`90s`, `18m`, `1.5h`, `2d` or `1h30m` as seconds; a bare number has no unit and is refused.

    Raises:
        InvalidOption: none of them, or more than 90 days.
    """
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    match = re.fullmatch("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,6}})?){unit})?" for unit in units), text.strip(), re.ASCII)
    seconds = sum(float(n) * size for n, size in zip(match.groups(), units.values(), strict=True) if n) if match else 0
    if not 0 < seconds <= MOST_TIME_S:
        raise InvalidOption(option, text, "a duration such as 90s, 18m, 1h30m or 2d, at most 90d")
    return seconds


def parse_busy(text: str, option: str) -> float:
    """`wait`, `stop` or a duration, as seconds that GPUs in use are waited for.

    Raises:
        InvalidOption: none of them.
    """
    known = {"wait": math.inf, "stop": 0.0}
    if text.strip() in known:
        return known[text.strip()]
    try:
        return parse_time(text, option)
    except InvalidOption:
        raise InvalidOption(option, text, "wait, stop, or how long to wait, such as 30m or 2h") from None


def parse_gpu_hours(text: str) -> float:
    """`20` or `1.5` GPU hours as seconds.

    Raises:
        InvalidOption: no number above 0, or more than a million.
    """
    match = re.fullmatch(r"\d{1,9}(?:\.\d{1,6})?|\.\d{1,6}", text.strip(), re.ASCII)
    hours = float(match[0]) if match else 0.0
    if not 0 < hours <= MOST_GPU_HOURS:
        raise InvalidOption("--max-gpu-hours", text, f"a number above 0, at most {MOST_GPU_HOURS:,.0f}")
    return hours * 3600.0


def parse_command(text: str, option: str) -> tuple[str, ...]:
    """`prog 'an argument'` as an argument list, split as a shell would; no shell runs it.

    Raises:
        InvalidOption: empty, or an open quote. The text may hold a secret and is not shown.
    """
    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words or not words[0] or "\0" in text:
        raise InvalidOption(option, NOT_SHOWN, "a command and its arguments, quotes closed")
    return words


def parse_share(text: str, option: str, *, least: float, most: float, off: bool = False) -> float:
    """`1%`, `99.5 %` or `0.01` as a share; with `off`, that word as 0.

    Raises:
        InvalidOption: none of them, or not within the bounds.
    """
    word = text.strip()
    if off and word == "off":
        return 0.0
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})\s*(%?)", word, re.ASCII)
    share = (float(match[1]) / (100 if match[2] else 1)) if match else -1.0
    if not least <= share <= most:
        allowed = f"a share from {100 * least:g}% to {100 * most:g}%, with or without the sign"
        raise InvalidOption(option, text, f"off, or {allowed}" if off else allowed)
    return share


def parse_parallel(text: str) -> int:
    """`auto` or a number of trials at once.

    Raises:
        InvalidOption: neither.
    """
    word = text.strip()
    if word == "auto":
        return AUTO_PARALLEL
    if not (word.isascii() and word.isdigit() and 1 <= int(word[:4]) <= MOST_PARALLEL and len(word) <= 4):
        raise InvalidOption("--parallel", text, f"auto, or a number from 1 to {MOST_PARALLEL}")
    return int(word)


def parse_address(text: str, option: str = "--ray-address") -> str | None:
    """`auto` as None, or `HOST:PORT` of a cluster's head.

    Raises:
        InvalidOption: neither; `ray://` is Ray's client, whose jobs do not end with it.
    """
    word = text.strip()
    if not re.fullmatch(ADDRESS, word, re.ASCII):
        raise InvalidOption(option, text, "auto, or HOST:PORT of the cluster's head, such as gpu01:6379")
    return None if word == "auto" else word


def parse_load(text: str) -> LoadChoice:
    """`auto`, or `concurrency=64,rate=12,requests=200` (any subset), per GPU used.

    Raises:
        InvalidOption: an unknown key, or a value that is not a positive number.
    """
    most = {"concurrency": MOST_CONCURRENCY, "rate": MOST_RATE_RPS, "requests": MOST_REQUESTS}
    limits = ", ".join(f"{key} up to {limit:,.0f}" for key, limit in most.items())
    allowed = f"auto, or concurrency=N, rate=R, requests=N separated by commas ({limits})"
    if text.strip() == "auto":
        return LoadChoice()
    found: dict[str, float] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if key in found or not 0 < number <= most.get(key, 0):
            raise InvalidOption("--load", text, allowed)
        if key != "rate" and number != int(number):
            raise InvalidOption("--load", text, allowed)
        found[key] = number
    return LoadChoice(
        concurrency=int(found["concurrency"]) if "concurrency" in found else None,
        rate_rps=found.get("rate"),
        requests=int(found["requests"]) if "requests" in found else None,
    )
