"""Leases of what a node has only once: GPUs, ports, CPU cores. One locked file each, whatever database a study uses.

The lock is flock(2) on an open file: the kernel drops it when the last process that has it open ends, however it ends,
so a crash leaves no lease. A descriptor handed to a server's keeper keeps the lease until that server is gone. What is
written in the file only tells who: nobody takes a lease for free, or for held, by what stands there.

Files are shared by all users of the node. A clean release takes its file away; one that is left, unlocked, says what
its holder had running when it was killed. Inside a container the folder is the container's own: mount one, or set
AUTOTUNE_LEASE_DIR, where two containers share GPUs.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import psutil

from autotune.errors import StorageError
from autotune.records import Gpu

LEASE_DIR = "AUTOTUNE_LEASE_DIR"
FOLDER_NAME = "autotune-leases"
SHARED_PLACES = (Path("/run/lock"), Path("/dev/shm"), Path("/tmp"))  # noqa: S108 - made to be shared, see `_make`
"""The first that every user may write to. It must be the same for all of them, so who asks does not matter."""

TRIES, PAUSE_S = 5, 0.02
"""Whoever looks whether a lease is held has its file locked for an instant."""

MOST_RECORD_BYTES = 4096
START_TOLERANCE_S = 0.05
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


class ResourceKind(StrEnum):
    """What can be leased."""

    GPU = "gpu"
    PORT = "port"
    CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Resource:
    """One thing of a node; `name` is the same for everybody who means it."""

    kind: ResourceKind
    name: str

    @property
    def file(self) -> str:
        """Name of its file."""
        return f"{self.kind}-{_UNSAFE.sub('_', self.name)[:100]}.lock"


def gpu_resource(gpu: Gpu) -> Resource:
    """A GPU by its UUID where the driver told one: containers number the same GPUs differently."""
    return Resource(kind=ResourceKind.GPU, name=gpu.uuid or str(gpu.index))


def port_resource(port: int) -> Resource:
    """A TCP port of the loopback address."""
    return Resource(kind=ResourceKind.PORT, name=str(port))


def core_resource(core: int) -> Resource:
    """A logical CPU, by the kernel's number."""
    return Resource(kind=ResourceKind.CPU, name=str(core))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """Who holds a lease, as its file tells.

    Attributes:
        pid, started: of the tuner; the start time (seconds since the epoch) tells a reused pid.
        since: when it was taken.
        marker, pgid: of the server that runs under it; empty and None while none does.
        baseline_bytes: of a GPU: memory in use while it was free; None before that was seen.
    """

    pid: int
    started: float
    user: str = ""
    study: str = ""
    since: str = ""
    marker: str = ""
    pgid: int | None = None
    baseline_bytes: int | None = None

    @property
    def is_alive(self) -> bool:
        """Whether that tuner still runs, as far as this process can see."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) <= START_TOLERANCE_S
        except psutil.Error:
            return False

    def __str__(self) -> str:
        who = f"study {self.study!r} of {self.user or 'an unknown user'} (process {self.pid}"
        ended = "" if self.is_alive else ", which has ended: its server is being stopped"
        return f"{who}{ended}), since {self.since[:16].replace('T', ' ')} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLease:
    """A lease that somebody holds now; `record` is None when its file does not tell who."""

    file: str
    record: LeaseRecord | None


def this_process(study: str) -> LeaseRecord:
    """What this tuner writes into the leases that it takes for a study."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's uid without a name
        user = str(os.getuid())
    return LeaseRecord(pid=os.getpid(), started=psutil.Process().create_time(), user=user, study=study)


def lease_folder(environ: Mapping[str, str]) -> Path:
    """The folder that all users of this node share."""
    if environ.get(LEASE_DIR):
        return Path(environ[LEASE_DIR])
    for place in SHARED_PLACES:
        with contextlib.suppress(OSError):
            if place.stat().st_mode & stat.S_IWOTH:
                return place / FOLDER_NAME
    return SHARED_PLACES[-1] / FOLDER_NAME


class Lease:
    """One resource, held until `release` or the end of every process that has `descriptor`.

    Attributes:
        left: what the holder before wrote, where that one ended without a release; None after a clean one.
    """

    def __init__(self, path: Path, descriptor: int, resource: Resource, owner: LeaseRecord) -> None:
        self._path, self._descriptor = path, descriptor
        self.resource = resource
        self.left = _read(descriptor)
        self._record = owner
        self._write()

    @property
    def descriptor(self) -> int:
        """Of the locked file; a process that inherits it holds the lease too."""
        return self._descriptor

    @property
    def study(self) -> str:
        """Whose it is."""
        return self._record.study

    def server_started(self, marker: str, pgid: int | None) -> None:
        """A server runs under it from now on: whoever finds the lease abandoned is to look for that."""
        self._record = replace(self._record, marker=marker, pgid=pgid)
        self._write()

    def server_gone(self) -> None:
        """Nothing runs under it any more."""
        self._record = replace(self._record, marker="", pgid=None)
        self._write()

    def seen_free(self, baseline_bytes: int) -> None:
        """A GPU's memory in use while nothing of ours runs."""
        self._record = replace(self._record, baseline_bytes=baseline_bytes)
        self._write()

    def release(self) -> None:
        """Give it back; twice is fine."""
        if self._descriptor < 0:
            return
        descriptor, self._descriptor = self._descriptor, -1
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
        # Still locked, so nobody holds another file of this name. In a sticky folder only its maker may take it away.
        with contextlib.suppress(OSError):
            self._path.unlink()
        # Unlocked in words: a copy of the descriptor in a keeper that is just ending would hold it longer.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def _write(self) -> None:
        """What stands there is for people and for reaping; a full disk must not end a study for it."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(OSError):
            text = json.dumps(asdict(self._record)).encode()
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, text, 0)


class NodeLeases:
    """The leases of this node, as one tuner takes them.

    Args:
        folder: `lease_folder`; made when something is first taken.
        owner: `this_process`.
    """

    def __init__(self, folder: Path, owner: LeaseRecord) -> None:
        self.folder = folder
        self._owner = owner

    def take(self, resource: Resource, *, tries: int = TRIES) -> Lease | None:
        """The lease; None where somebody holds it, in this process or another.

        Raises:
            StorageError: the folder or the file cannot be written or locked.
        """
        path = self.folder / resource.file
        try:
            _make(self.folder)
            for last in (*(False,) * (tries - 1), True):
                descriptor = _locked(path)
                if descriptor is not None:
                    since = datetime.now(UTC).isoformat(timespec="seconds")
                    return Lease(path, descriptor, resource, replace(self._owner, since=since))
                if not last:
                    time.sleep(PAUSE_S)
        except OSError as error:
            raise StorageError(
                f"{path}: cannot be leased: {error.strerror}",
                hint=f"All users of the node must be able to write to {str(self.folder)!r}; "
                f"{LEASE_DIR} names another folder for it.",
            ) from None
        return None

    def take_all(self, resources: Sequence[Resource], *, tries: int = TRIES) -> tuple[Lease, ...] | None:
        """All of them or, where somebody holds one, none: two tuners never wait for each other's half.

        Raises:
            StorageError: as `take`.
        """
        taken: list[Lease] = []
        try:
            for resource in resources:
                lease = self.take(resource, tries=tries)
                if lease is None:
                    break
                taken.append(lease)
            else:
                return tuple(taken)
        except BaseException:
            _release(taken)
            raise
        _release(taken)
        return None

    def holder(self, resource: Resource) -> HeldLease | None:
        """Who holds it now; None when nobody does."""
        return _held(self.folder / resource.file)

    def held(self, kind: ResourceKind | None = None) -> tuple[HeldLease, ...]:
        """Everything that is held now, of one kind or of all, by name of its file."""
        paths = sorted(self.folder.glob(f"{kind or '*'}-*.lock"))
        return tuple(found for path in paths if (found := _held(path)) is not None)


def _release(leases: Sequence[Lease]) -> None:
    for lease in leases:
        lease.release()


def _make(folder: Path) -> None:
    """Open to every user, as /tmp is: nobody but its maker can take a file away."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
        folder.chmod(0o1777)


def _locked(path: Path) -> int | None:
    """A descriptor with the lock of the file that is at `path` now; None where somebody else has it."""
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(path, descriptor):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # released and taken away between opening and locking


def _opened(path: Path) -> int:
    """Not made by opening: Linux refuses that for somebody else's file in a shared folder (fs.protected_regular)."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
            os.fchmod(descriptor, 0o666)  # whatever the umask
            return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    mine = os.fstat(descriptor)
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def _held(path: Path) -> HeldLease | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return HeldLease(file=path.name, record=_read(descriptor))
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def _read(descriptor: int) -> LeaseRecord | None:
    """What stands in a lease's file. Any user may have written it: nothing is believed but its form."""
    try:
        raw = json.loads(os.pread(descriptor, MOST_RECORD_BYTES, 0))
        pgid, baseline = raw["pgid"], raw["baseline_bytes"]
        return LeaseRecord(
            pid=int(raw["pid"]),
            started=float(raw["started"]),
            user=_plain(raw["user"]),
            study=_plain(raw["study"]),
            since=_plain(raw["since"]),
            marker=_plain(raw["marker"]),
            pgid=None if pgid is None else int(pgid),
            baseline_bytes=None if baseline is None else int(baseline),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # empty, or not written yet


def _plain(value: object) -> str:
    """Printable, so that no file of another user writes to our terminal."""
    return "".join(sign for sign in str(value)[:200] if sign.isprintable())
