"""Raw records of a load level on disk: gzipped JSON lines, from which every figure can be computed again.

```
{"format": 1, "level": {...}, "clock": "wall"}           head
{"index": 0, "scheduled_s": 0.0, ...}                    one line per request
{"end": {"duration_s": 12.5, "requests": 512, "server": {...}}}  last line; a file without it is a broken one
```
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import IO, Any

from autotune.errors import StorageError
from autotune.records import (
    Arrivals,
    ClockKind,
    CpuUse,
    GpuUse,
    LevelRole,
    LevelUse,
    LoadLevel,
    RequestRecord,
    ServerDelta,
)

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFile:
    """What one file holds: the arguments of measure.summarise."""

    level: LoadLevel
    clock: ClockKind
    records: tuple[RequestRecord, ...]
    duration_s: float
    server: ServerDelta | None = None
    energy_j: float | None = None
    use: LevelUse | None = None


def level_path(directory: Path, level: LoadLevel) -> Path:
    """Where a level's records lie: `level-<name>.jsonl.gz`; signs that file systems dislike become `_`."""
    return directory / f"level-{re.sub(r'[^A-Za-z0-9.=-]', '_', level.name)}.jsonl.gz"


def write_records(
    path: Path,
    level: LoadLevel,
    clock: ClockKind,
    records: Iterable[RequestRecord],
    duration_s: float,
    server: ServerDelta | None = None,
    energy_j: float | None = None,
    use: LevelUse | None = None,
) -> None:
    """Write a level's file, record by record, and put it in place whole or not at all.

    Raises:
        StorageError: read-only, full disk, no such folder.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as raw:
            # No time stamp in the gzip head: the same records give the same bytes.
            with gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=1, mtime=0) as packed:
                _write(packed, level, clock, records, _end(duration_s, server, energy_j, use))
            raw.flush()
            os.fsync(raw.fileno())
        draft.replace(path)
    except OSError as error:
        raise StorageError(
            f"cannot write the request records to {path}: {error.strerror or error}",
            hint="Free the disk or make the studies folder writable; the study goes on with the same command.",
        ) from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def read_records(path: Path) -> LevelFile:
    """Read a level's file back.

    Raises:
        StorageError: cannot be read, is cut off, or was written in another format.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            head = json.loads(next(lines, "{}"))
            if head.get("format") != FORMAT:
                raise StorageError(f"{path}: record format {head.get('format')!r}, this version reads {FORMAT}")
            return _parse(head, lines)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"cannot read the request records in {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is not a file of request records, or is cut off: {error}") from error


def read_ttft(path: Path) -> tuple[float, ...]:
    """Seconds to the first token of a level's requests that succeeded, in the file's order; from the scheduled time.

    Of an open loop these are what its TTFT figures are made of. The rest of a record is not looked at.

    Raises:
        StorageError: cannot be read, or is no file of request records.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            rows = (json.loads(line) for line in lines)
            good = (row for row in rows if row.get("error") is None and row.get("first_token_s") is not None)
            return tuple(float(row["first_token_s"]) - float(row["scheduled_s"]) for row in good)
    except (OSError, EOFError, zlib.error) as error:
        raise StorageError(f"cannot read the request records in {path}: {error}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StorageError(f"{path} is not a file of request records, or is cut off: {error}") from error


def _write(
    packed: gzip.GzipFile,
    level: LoadLevel,
    clock: ClockKind,
    records: Iterable[RequestRecord],
    end: dict[str, Any],
) -> None:
    packed.write(_line({"format": FORMAT, "level": asdict(level), "clock": clock}))
    names = [f.name for f in fields(RequestRecord)]
    count = 0
    for record in records:
        # What is None is left out; reading puts it back.
        packed.write(_line({name: v for name in names if (v := getattr(record, name)) is not None}))
        count += 1
    packed.write(_line({"end": end | {"requests": count}}))


def _end(duration_s: float, server: ServerDelta | None, energy_j: float | None, use: LevelUse | None) -> dict[str, Any]:
    end: dict[str, Any] = {"duration_s": duration_s, "server": asdict(server) if server else None}
    if energy_j is not None:
        end["energy_j"] = energy_j
    if use is not None:
        end["use"] = asdict(use)
    return end


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _parse(head: dict[str, Any], lines: IO[str]) -> LevelFile:
    raw = head["level"]
    level = LoadLevel(**{**raw, "role": LevelRole(raw["role"]), "arrivals": Arrivals(raw["arrivals"])})
    empty = {f.name: None for f in fields(RequestRecord)}
    records: list[RequestRecord] = []
    for text in lines:
        row = json.loads(text)
        if "end" in row:
            end = row["end"]
            if end["requests"] != len(records):
                raise ValueError(f"{len(records)} of {end['requests']} records")
            server = None if end["server"] is None else ServerDelta(**end["server"])
            clock = ClockKind(head["clock"])
            return LevelFile(
                level=level,
                clock=clock,
                records=tuple(records),
                duration_s=end["duration_s"],
                server=server,
                energy_j=end.get("energy_j"),
                use=_use(end.get("use")),
            )
        records.append(RequestRecord(**{**empty, **row, "token_times_s": tuple(row["token_times_s"])}))
    raise ValueError("the last line is missing")


def _use(told: dict[str, Any] | None) -> LevelUse | None:
    if told is None:
        return None
    cpu = told["cpu"]
    return LevelUse(
        gpus=tuple(GpuUse(**gpu) for gpu in told["gpus"]),
        cpu=None if cpu is None else CpuUse(**cpu),
        jit_compiles=told["jit_compiles"],
    )
