"""Every parser under a few mutations of its samples; `python -m benchmarks.fuzz` runs many more."""

from __future__ import annotations

import pytest

from benchmarks.fuzz import fuzz
from benchmarks.fuzz_targets import Target, targets

EXAMPLES = 60


@pytest.mark.parametrize("target", targets(), ids=lambda target: target.name)
def test_a_parser_refuses_or_reads(target: Target) -> None:
    row = fuzz(target, EXAMPLES, number=1)
    assert row.faults == []
    assert row.examples >= EXAMPLES
    # The samples themselves are read: a fuzzer whose every input is refused at the door looks at nothing.
    for sample in target.samples[:1]:
        target.parse(sample, ())


@pytest.mark.no_cover
def test_what_a_parser_should_not_do_is_found() -> None:
    def bad(data: bytes, _cuts: object) -> None:
        if b"$(id)" in data:
            raise KeyError("x")

    found = fuzz(Target(name="bad", parse=bad, samples=(b"abc",)), 2000, number=1)
    assert len(found.faults) == 1
    assert "KeyError" in found.faults[0]
    assert "$(id)" in found.faults[0]
