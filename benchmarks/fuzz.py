"""Every parser of text from elsewhere under mutated input: `python -m benchmarks.fuzz [--examples 20000] [--json]`.

One row a parser: examples, those that it refused with its own error, the slowest, and what went wrong, with the
smallest input that shows it. `--only log` runs one, `--seed` others. The status is 1 where anything went wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.fuzz_targets import TOKEN, Target, targets

SLOW_S = 5.0
"""CPU seconds that no input of a few kilobytes may take."""

ODD = (
    *(
        b"\0",
        b"\xff",
        b"\r",
        b"\n",
        b"\t",
        b"\x1b[31m",
        b"\xe2\x80\xae",
        b'"',
        b"'",
        b"\\",
        b"{",
        b"[",
        b"]",
        b"}",
        b":",
        b",",
    ),
    *(
        b"$(id)",
        b";",
        b"-",
        b"1e999",
        b"NaN",
        b"-1",
        b"9" * 400,
        b"[" * 2000,
        b"null",
        b"true",
        b"../",
        b"%s",
        b"&a *a",
    ),
    *(b"!!python/object/apply:os.system [id]", b"<<: *x", TOKEN.encode(), b"HF_TOKEN=", b"data:", b"# HELP"),
)


@dataclass(slots=True)
class Row:
    """What one parser did."""

    name: str
    examples: int = 0
    refused: int = 0
    slowest_s: float = 0.0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20_000, help="of each parser")
    parser.add_argument("--only", action="append", help="a parser's name; may be given several times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = [target for target in targets() if not args.only or target.name in args.only]
    rows = []
    for target in chosen:
        rows.append(fuzz(target, args.examples, args.seed))
        if not args.json:
            print(_line(rows[-1]), flush=True)
    total = sum(row.examples for row in rows)
    faults = sum(len(row.faults) for row in rows)
    if args.json:
        print(
            json.dumps(
                {"schema": 1, "examples": total, "faults": faults, "rows": [asdict(row) for row in rows]}, indent=2
            )
        )
    else:
        print(f"{total:,} examples of {len(rows)} parsers, {faults} faults")
    sys.exit(1 if faults or not rows else 0)


def _line(row: Row) -> str:
    text = f"{row.name:16} {row.examples:8,} examples  {row.refused:8,} refused  slowest {row.slowest_s * 1000:7.1f} ms"
    return "\n".join([f"{text}  {row.seconds:6.1f} s", *(f"  FAULT {fault}" for fault in row.faults)])


def fuzz(target: Target, examples: int, number: int) -> Row:
    """Run one parser on so many mutations of its samples.

    Args:
        number: of the seed; equal ones give equal inputs.
    """
    row = Row(target.name)
    failing: tuple[bytes, list[int]] = (b"", [])

    @seed(number)
    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(mutated(target.samples), st.lists(st.integers(0, 10_000), max_size=4))
    def run(data: bytes, cuts: list[int]) -> None:
        nonlocal failing
        begun = time.process_time()
        row.examples += 1
        try:
            target.parse(data, cuts)
        except target.refusals:
            row.refused += 1
        except Exception:
            failing = (data, cuts)  # the last one is the shortest
            raise
        spent = time.process_time() - begun
        row.slowest_s = max(row.slowest_s, spent)
        if spent > SLOW_S:
            failing = (data, cuts)
            raise AssertionError(f"takes {spent:.1f} s")

    begun = time.process_time()
    try:
        run()
    except Exception as error:  # noqa: BLE001 - whatever a parser raises is what is looked for
        data, cuts = failing
        row.faults.append(f"{type(error).__name__}: {str(error)[:300]} -- {data[:1500]!r}, cut at {cuts}")
    row.seconds = time.process_time() - begun
    return row


@st.composite
def mutated(draw: Any, samples: Sequence[bytes]) -> bytes:
    """A sample with a few edits; now and then bytes of no sample at all."""
    if draw(st.integers(0, 19)) == 0:
        return bytes(draw(st.binary(max_size=400)))
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, 20_000)) % (len(data) + 1)
        length = draw(st.integers(0, 40))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            del data[start : start + length]
        elif kind == 1:
            data[start : start + length] = draw(st.sampled_from(ODD))
        elif kind == 2:
            data[start:start] = draw(st.binary(max_size=20))
        elif kind == 3:
            data[start:start] = data[start : start + length] * 3
        else:
            data[start : start + length] = draw(st.text(max_size=12)).encode()
    return bytes(data)


if __name__ == "__main__":
    main()
