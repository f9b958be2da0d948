"""What the commands see of this machine, read in one place."""

from __future__ import annotations

import os
from pathlib import Path

from autotune.node.probe import open_probe
from autotune.planning import Surroundings


def surroundings() -> Surroundings:
    """This process's own environment, driver and file system."""
    environ = dict(os.environ)
    cache = (
        environ.get("AUTOTUNE_CACHE_DIR") or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "autotune"
    )
    return Surroundings(
        environ=environ,
        home=Path.home(),
        probe=open_probe(),
        shm_bytes=_shm_bytes(),
        has_kfd=Path("/dev/kfd").exists(),
        cache_dir=Path(cache),
    )


def _shm_bytes() -> int | None:
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108 - its size is asked, nothing is written there
    except OSError:
        return None
    return found.f_frsize * found.f_blocks
