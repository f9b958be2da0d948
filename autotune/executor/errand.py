"""What the tuner sends to a node for one attempt, and what comes back: records, and the frames that carry them.

A frame is a length of four bytes, big-endian, and a pickle. Tuner and node process are one program of one version (the
survey compares them) and trust each other as any two processes of a Ray cluster do; nothing else reads frames.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from autotune.engine.base import Milestone, ServerIdentity
from autotune.errors import AutotuneError
from autotune.planning import StudyPlan
from autotune.records import LoadLevel, Phase
from autotune.trial import TrialOrder, TrialRun

HEAD = struct.Struct(">I")
PART_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """One attempt for a node.

    Attributes:
        order: its folder is the tuner's.
        shares_folder: whether that folder is the same on the node; otherwise raw files are written on the node and
            sent when the attempt has ended.
        shared_gpus: GPUs of a node that it shares with other trials, as Ray has made them visible; None for a node to
            itself.
        pace: real seconds that a virtual one takes in a simulation; 0 for none. Benchmarks and tests wait so.
    """

    trial: int
    order: TrialOrder
    shares_folder: bool
    pace: float = 0.0
    shared_gpus: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Entered:
    """The attempt entered a phase, `elapsed_s` after its start on the engine's clock."""

    phase: Phase
    elapsed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where the node writes the attempt's raw files until they are sent."""

    directory: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One line for the operator."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """The next bytes of a raw file, by its name in the attempt's folder."""

    name: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Performed:
    """The attempt's end; the last event."""

    run: TrialRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """It was told to end, and did; the last event."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The study cannot go on; the last event."""

    error: AutotuneError


Event = Entered | Placed | Told | FilePart | ServerIdentity | Milestone | LoadLevel | Performed | Withdrawn | Refused


def travelling(plan: StudyPlan) -> StudyPlan:
    """What a node needs of a plan: no candidates, nothing of the tuner's own machine, no secret."""
    recipe = replace(plan.recipe, notify_command=(), notify_url=None)
    return replace(plan, recipe=recipe, feasible=(), refused=(), starting_points=(), generated=None, cache_dir=None)


def packed(record: object) -> bytes:
    """A frame."""
    content = pickle.dumps(record)
    return HEAD.pack(len(content)) + content


def unpacked(frame: bytes) -> Event:
    """The event in a whole frame of a node process."""
    event: Event = pickle.loads(frame[HEAD.size :])  # noqa: S301 - see the module's docstring
    return event


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next whole frame; None at the end of the stream, also within a frame: whoever wrote it was killed."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    content = stream.read(HEAD.unpack(head)[0])
    return head + content if len(content) == HEAD.unpack(head)[0] else None


def parts(folder: Path) -> Iterator[FilePart]:
    """All files of a folder, piece by piece; an empty one is a single empty part."""
    for path in sorted(found for found in folder.rglob("*") if found.is_file() and not found.is_symlink()):
        name = path.relative_to(folder).as_posix()
        with path.open("rb") as file:
            content = file.read(PART_BYTES)
            yield FilePart(name=name, content=content)
            while content := file.read(PART_BYTES):
                yield FilePart(name=name, content=content)


def keep(part: FilePart, folder: Path) -> None:
    """Append a part to its file below `folder`.

    Raises:
        ValueError: its name leads out of the folder.
        OSError: it cannot be written.
    """
    target = folder / part.name
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"a raw file named {part.name!r} leads out of its folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("ab") as file:
        file.write(part.content)
