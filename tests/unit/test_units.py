"""Words for quantities."""

from autotune.units import plural


def test_one_is_no_plural() -> None:
    assert [plural(number, "raw file") for number in (0, 1, 2, 10_000)] == [
        "0 raw files",
        "1 raw file",
        "2 raw files",
        "10,000 raw files",
    ]
