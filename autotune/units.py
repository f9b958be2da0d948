"""Units. Inside the program everything is seconds, bytes and tokens; these turn them into text and back."""

from __future__ import annotations

KIB = 1024
MIB = 1024**2
GIB = 1024**3


def plural(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`, `10,000 trials`; of nouns whose plural ends in s."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def gib(value_bytes: float) -> float:
    """Bytes as GiB."""
    return value_bytes / GIB


def format_seconds(seconds: float) -> str:
    """A duration for people: `4.2 ms`, `38 ms`, `4.2 s`, `3 min 07 s`, `2 h 05 min`."""
    if (
        0.00005 <= seconds < 0.00995
    ):  # a token of a small model takes this long: whole numbers would hide a difference of 10 %
        return f"{seconds * 1000:.1f} ms"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = whole // 60
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_bytes(value_bytes: float) -> str:
    """A size for people, in the binary units that vLLM logs: `15.0 GiB`, `512 MiB`."""
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(value_bytes) >= size:
            return (
                f"{value_bytes / size:.3g} {unit}"
                if abs(value_bytes) < 1000 * size
                else f"{value_bytes / size:,.0f} {unit}"
            )
    return f"{value_bytes:.0f} B"
