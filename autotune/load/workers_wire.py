"""What a level's worker processes and their owner say to each other: pickled messages, each behind its length.

Only over the pipes between a process and the child that it has started itself: never a file, never a socket.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass, field

from autotune.load.exchange import Timeouts, TransportKind
from autotune.records import LoadLevel, PlannedRequest, RequestRecord

_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker does; a message `Body` for each of its requests follows, in their order.

    Attributes:
        headers: of every request; they may hold the secret, which is why they come over a pipe.
        offsets_s: when each slot of a closed loop opens.
        connections, spare: opened beforehand, and kept ready.
        tell: send each record as its request ends, and not all of them at the end.
    """

    url: str
    headers: dict[str, str] = field(repr=False)
    timeouts: Timeouts
    transport: TransportKind | None
    level: LoadLevel
    requests: tuple[PlannedRequest, ...]
    in_flight: int
    offsets_s: tuple[float, ...]
    deadline_s: float
    connections: int
    spare: int
    tell: bool


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of the next request."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Prepare:
    """Open the connections now."""


@dataclass(frozen=True, slots=True)
class Ready:
    """They are open; `clock` is what the worker's clock shows."""

    clock: float


@dataclass(frozen=True, slots=True)
class Start:
    """`clock` is the level's zero."""

    clock: float


@dataclass(frozen=True, slots=True)
class Abort:
    """The level ends now."""


@dataclass(frozen=True, slots=True)
class Records:
    """What became of some requests; `last` when there is no more to come.

    Attributes:
        cpu_s: with the last, the CPU seconds that the worker used from the level's zero to its end.
    """

    records: tuple[RequestRecord, ...]
    last: bool
    cpu_s: float | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker cannot go on. `storage` when it had no room for prompts."""

    message: str
    hint: str = ""
    storage: bool = False


Message = Order | Body | Prepare | Ready | Start | Abort | Records | Failed


def pack(message: Message) -> bytes:
    """Bytes of a message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Message | None:
    """The next message; None when the other side has gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        data = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    message: Message = pickle.loads(data)  # noqa: S301 - from our own child or parent alone
    return message
