"""Compiled code that is kept from one server to the next: of one vLLM on one node, across trials and across studies.

A start of an 8B model on an H200 takes 83 s with nothing compiled and 52 s with everything compiled. What is kept, and
where it goes in a slot:

| variable | folder | what |
|---|---|---|
| VLLM_CACHE_ROOT | vllm | torch.compile's graphs (`torch_compile_cache`), P2P checks, autotuned tactics |
| TORCHINDUCTOR_CACHE_DIR | torchinductor | what is compiled outside vLLM's own graphs, else in /tmp |
| TRITON_CACHE_DIR | triton_cache | kernels that no graph holds (fused experts), else in ~/.triton |
| DG_JIT_CACHE_DIR | vllm/deep_gemm | DeepGEMM's kernels; versions before 0.11 kept them elsewhere |

FlashInfer's own cache stays where it is (~/.cache/flashinfer): its files carry its version, it locks them, and they may
be downloads that a node without a network could not repeat.

An operator who sets VLLM_CACHE_ROOT or VLLM_DISABLE_COMPILE_CACHE is obeyed: such a cache is used, and never touched.

Servers that start at the same time must not share a cache: vLLM writes some of its files in place, and a neighbour
that reads one half written dies of it (vllm#31199). So there are slots, each locked (flock) by one server from before
its start until it is gone. A lone tuner always gets slot 0.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from autotune.errors import StorageError
from autotune.records import Failure, FailureClass

FOLDER = "compile"
"""Below the cache directory of autotune."""

OPERATORS = ("VLLM_CACHE_ROOT", "VLLM_DISABLE_COMPILE_CACHE")
"""Set by whoever starts the tuner (or by a config), these say where compiled code is kept, or that it is not."""

MOST_SLOTS = 16
"""A server that finds them all taken goes without: sixteen at once is more than a node has GPUs for."""

KEPT_ASIDE_S = 7 * 86_400.0
"""A damaged cache may be looked at for that long; whoever takes its slot afterwards deletes it."""

REPLACED = "compile_cache_replaced"
"""Fact of a failure whose cache was set aside: where it lies now."""

_PARTS = (
    ("VLLM_CACHE_ROOT", "vllm"),
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor"),
    ("TRITON_CACHE_DIR", "triton_cache"),
    ("DG_JIT_CACHE_DIR", "vllm/deep_gemm"),
)
_COMPILED = ("vllm/torch_compile_cache", "vllm/deep_gemm", "torchinductor", "triton_cache")
_SLOT = re.compile(r"slot-\d+(\.replaced)?")
_UNSAFE = re.compile(r"[^A-Za-z0-9.+_-]+")


def is_cured(failure: Failure) -> bool:
    """Whether a failure's cause is gone already, because its compile cache was replaced: no fault of the config."""
    return failure.kind is FailureClass.COMPILE_CACHE and any(name == REPLACED for name, _ in failure.facts)


class CacheLease:
    """One slot, locked for one server. `release` when the server is gone."""

    def __init__(self, folder: Path, lock: int, *, env: Mapping[str, str]) -> None:
        self._folder, self._lock = folder, lock
        self._condemned = False
        self.env = dict(env)
        self.was_empty = not any(_files(folder))

    @property
    def lock(self) -> int:
        """Descriptor of the lock. A process that inherits it holds the slot even if this one is killed."""
        return self._lock

    @property
    def aside(self) -> Path:
        """Where a condemned cache goes, for whoever wants to look at it: one generation, the next one replaces it."""
        return self._folder.with_name(f"{self._folder.name}.replaced")

    def tidy(self, now: float) -> None:
        """Delete what was set aside long before `now` (seconds since the epoch)."""
        with contextlib.suppress(OSError):
            if now - self.aside.stat().st_mtime > KEPT_ASIDE_S:
                shutil.rmtree(self.aside, ignore_errors=True)

    def condemn(self) -> None:
        """What is in the slot is damaged: `release` sets it aside, so that the next server begins with an empty one."""
        self._condemned = True

    def release(self) -> None:
        """Give the slot back; twice is fine. Nothing is raised: a cache that cannot be moved is met again, and told."""
        if self._lock < 0:
            return
        if self._condemned:
            with contextlib.suppress(OSError):
                shutil.rmtree(self.aside, ignore_errors=True)
                self._folder.rename(self.aside)
                os.utime(self.aside)  # from when on it is kept
        lock, self._lock = self._lock, -1
        # Unlocked in words: a copy of the descriptor in a keeper that is just ending would hold the slot longer.
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


class CompileCaches:
    """The slots of one vLLM on one node.

    Args:
        root: made when a slot is first taken.
        environ: what servers inherit.
    """

    def __init__(self, root: Path, environ: Mapping[str, str]) -> None:
        self.root = root
        self._environ = environ

    @classmethod
    def of(cls, cache_dir: Path, *, version: str, command: str, node: str, environ: Mapping[str, str]) -> CompileCaches:
        """Those of a vLLM.

        Args:
            version: vLLM's.
            command: its executable: two installations of one version may have different compilers.
            node: a home folder may be shared between nodes with different GPUs.
        """
        key = hashlib.sha256(f"{command}\0{node}".encode()).hexdigest()[:8]
        name = _UNSAFE.sub("_", version)[:40]
        return cls(cache_dir.absolute() / FOLDER / f"vllm-{name}-{key}", environ)

    def take(self, added: Mapping[str, str]) -> CacheLease | None:
        """The first free slot; None where the operator keeps the cache, or where nothing can be written or locked.

        Args:
            added: what this server's environment gets beside what it inherits.
        """
        whole = {**self._environ, **added}
        if any(whole.get(name) not in (None, "", "0") for name in OPERATORS):
            return None
        for number in range(MOST_SLOTS):
            folder = self.root / f"slot-{number}"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                lock = os.open(folder.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except OSError:
                return None  # read-only or full: servers do without
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            except OSError:  # a file system without locks
                os.close(lock)
                return None
            # Once more: whoever held it may have set the folder aside between the two.
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
            env = {name: str(folder / part) for name, part in _PARTS if not whole.get(name)}
            with contextlib.suppress(OSError):
                os.utime(lock)  # when it was last used, whether or not anything is compiled
            lease = CacheLease(folder, lock, env=env)
            lease.tidy(time.time())
            return lease
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCache:
    """One slot, or what was set aside of one.

    Attributes:
        in_use: a server holds it now.
        used_at: when a server last took it, or it was set aside; UTC.
    """

    path: Path
    size_bytes: int
    used_at: datetime
    in_use: bool

    @property
    def lock(self) -> Path:
        """The file whose lock stands for the slot."""
        return self.path.with_name(f"{self.path.name.removesuffix('.replaced')}.lock")


def kept_caches(cache_dir: Path) -> tuple[KeptCache, ...]:
    """All compiled code below the cache directory, of every vLLM and node, by path. Links are not followed."""
    found = []
    for path in sorted((cache_dir / FOLDER).glob("vllm-*/slot-*")):
        if _SLOT.fullmatch(path.name) is None or path.is_symlink() or not path.is_dir() or path.parent.is_symlink():
            continue
        kept = KeptCache(path=path, size_bytes=_size(path), used_at=datetime.fromtimestamp(0, UTC), in_use=False)
        aside = path.name.endswith(".replaced")
        with contextlib.suppress(OSError):
            seen = path.stat() if aside or not kept.lock.exists() else kept.lock.stat()
            held = False if aside else _is_held(kept.lock)
            found.append(replace(kept, used_at=datetime.fromtimestamp(seen.st_mtime, UTC), in_use=held))
    return tuple(found)


def forget_cache(kept: KeptCache) -> bool:
    """Delete a slot's files under its lock; False where it is gone or in use meanwhile. The next start compiles anew.

    Raises:
        StorageError: it cannot be deleted.
    """
    try:
        lock = os.open(kept.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise StorageError(f"{kept.lock}: cannot be locked: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(kept.path)
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise StorageError(f"{kept.path}: cannot be deleted: {error.strerror}") from None
    finally:
        os.close(lock)  # the file stays: who waits for it holds the same one
    return True


def _is_held(lock: Path) -> bool:
    descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_size
    return total


def _files(folder: Path) -> Iterator[Path]:
    """Compiled code in a slot; what vLLM remembers beside it is none."""
    for part in _COMPILED:
        for path in (folder / part).rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    yield path
