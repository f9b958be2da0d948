"""The folder that a server has to itself, so that nothing of it is left when it was killed.

vLLM puts its ZMQ sockets (a UUID each, in VLLM_RPC_BASE_PATH) and the file that its workers meet at (`vllm_dist_*`, in
the temporary directory) where every program has its own, and only a server that ends by itself takes them away
(vllm/utils/network_utils.py 0.32). So each server gets a folder of mode 0700 in the temporary directory, named after
the marker that its processes carry; the keeper makes it and takes it away when nothing of the server runs any more,
and where the keeper was killed too, whoever reaps.

| variable | where it points |
|---|---|
| VLLM_RPC_BASE_PATH | there |
| TMPDIR | there, for what else a server leaves: Prometheus' files, Python's own sockets |
| TORCHINDUCTOR_CACHE_DIR, RAY_TMPDIR | where they would be without TMPDIR: they are shared on purpose |

A socket's path has 107 bytes at most. Where the operator's temporary directory is too deep for one, the folder is in
/tmp, and TMPDIR stays what it is.

An operator who sets VLLM_RPC_BASE_PATH is obeyed, and so is a config that sets any of them.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from autotune.engine.marker import marker_of
from autotune.engine.processes import snapshot
from autotune.errors import StorageError

PREFIX = "autotune-server-"
MARKER_SIGNS = 12
"""Of the marker, in a folder's name: a socket's path is short."""

SOCKET_PATH_BYTES = 107
"""sun_path of unix(7), without its final NUL."""
_UUID_BYTES = len("/") + 36
_NAME = re.compile(rf"{PREFIX}[0-9a-f]{{{MARKER_SIGNS}}}")
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
SHARED_PLACES = ("/tmp", "/var/tmp")  # noqa: S108 - other users write there too, hence 0700


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateFolder:
    """That of one server.

    Attributes:
        path: to be made, and to be taken away; None where a server does without.
        env: what points there.
    """

    path: Path | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def private_folder(marker: str, inherited: Mapping[str, str], added: Mapping[str, str]) -> PrivateFolder:
    """The folder of a server; none where no temporary directory can be written.

    Args:
        inherited: the environment that the server would have had.
        added: what its launch adds to it, which wins.
    """
    places = _places(inherited)
    place = next((one for one in places if _is_short(_in(one, marker))), None)
    if place is None:
        return PrivateFolder()
    path = _in(place, marker)
    env = {} if inherited.get("VLLM_RPC_BASE_PATH") else {"VLLM_RPC_BASE_PATH": str(path)}
    if place == places[0] and "TMPDIR" not in added:
        env["TMPDIR"] = str(path)
        env["RAY_TMPDIR"] = inherited.get("RAY_TMPDIR") or str(place)
        env["TORCHINDUCTOR_CACHE_DIR"] = inherited.get("TORCHINDUCTOR_CACHE_DIR") or str(place / _inductors())
    env = {name: value for name, value in env.items() if name not in added}
    return PrivateFolder(path=path, env=env) if str(path) in env.values() else PrivateFolder()


def remove_private_folder(marker: str, environ: Mapping[str, str], stored: str = "") -> None:
    """Take away what a server left, none of whose processes runs any more; what is not there, or not ours, is fine.

    Args:
        stored: the folder as its launch had it, which this environment's temporary directory may no longer lead to.
    """
    places = (*_places(environ), *([Path(stored).parent] if Path(stored).is_absolute() else []))
    for place in places:
        folder = _in(place, marker)
        if _NAME.fullmatch(folder.name) and _is_ours(folder):
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftFolder:
    """A private folder that is there now.

    Attributes:
        used_at: when something was last made or taken away in it; UTC.
        in_use: its keeper lives, or a process carries its marker.
    """

    path: Path
    size_bytes: int
    used_at: datetime
    in_use: bool


def left_folders(environ: Mapping[str, str]) -> tuple[LeftFolder, ...]:
    """This user's, by path."""
    return tuple(_looked_at(path) for path in sorted(set(_all(environ))))


def forget_folder(path: Path) -> bool:
    """Delete one that nobody uses; False where it is gone, or somebody does.

    Raises:
        StorageError: it cannot be deleted.
    """
    if not _is_ours(path) or _looked_at(path).in_use:
        return False
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"{path}: cannot be deleted: {error.strerror}") from None
    return True


def _all(environ: Mapping[str, str]) -> Iterator[Path]:
    for place in _places(environ):
        with contextlib.suppress(OSError):
            yield from (path for path in place.glob(f"{PREFIX}*") if _NAME.fullmatch(path.name) and _is_ours(path))


def _looked_at(path: Path) -> LeftFolder:
    size, changed = 0, 0.0
    with contextlib.suppress(OSError):
        changed = path.stat().st_mtime
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):
            size += file.lstat().st_size
    used = datetime.fromtimestamp(changed, UTC)
    return LeftFolder(path=path, size_bytes=size, used_at=used, in_use=_is_in_use(path))


def _is_in_use(path: Path) -> bool:
    """Locked by a keeper, which may be in another container, or somebody's who carries the marker."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return True  # a file system without locks: nobody can tell
    finally:
        os.close(descriptor)
    signs = path.name.removeprefix(PREFIX)
    return any((marker_of(pid) or "").startswith(signs) for pid in snapshot())


def _places(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """Where temporary files go, as `tempfile` finds it, and where they may go otherwise."""
    named = [environ[name] for name in _TEMPORARY if environ.get(name)]
    found = dict.fromkeys(Path(place).absolute() for place in (*named[:1], *SHARED_PLACES))
    return tuple(place for place in found if _may_make_folders(place))


def _may_make_folders(place: Path) -> bool:
    try:
        return place.is_dir() and os.access(place, os.W_OK | os.X_OK)
    except OSError:  # a name that is too long, or below what this user may not enter
        return False


def _in(place: Path, marker: str) -> Path:
    return place / f"{PREFIX}{marker[:MARKER_SIGNS]}"


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) + _UUID_BYTES <= SOCKET_PATH_BYTES


def _is_ours(folder: Path) -> bool:
    """A real folder of this user, which nobody else can have made."""
    try:
        found = folder.lstat()
    except (OSError, ValueError):  # a stored name may hold a NUL
        return False
    return folder.is_dir() and not folder.is_symlink() and found.st_uid == os.getuid()


def _inductors() -> str:
    """The name of torch's default (torch/_inductor/runtime/cache_dir_utils.py 2.9)."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's uid without a name
        user = str(os.getuid())
    return "torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", user)
