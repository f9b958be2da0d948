"""What the commands see of this machine, read in one place."""

from __future__ import annotations

import getpass
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.planning import Surroundings
    from autotune.store.places import Places

BUSY_TIMEOUT_NAME = "AUTOTUNE_BUSY_TIMEOUT_S"


def surroundings() -> Surroundings:
    """This process's own environment, driver and file system."""
    from autotune.node.machine import cache_dir, count_numa_nodes, shm_bytes
    from autotune.node.nvml_probe import open_probe
    from autotune.planning import Surroundings

    environ = dict(os.environ)
    return Surroundings(
        environ=environ,
        home=Path.home(),
        probe=open_probe(),
        shm_bytes=shm_bytes(),
        has_kfd=has_kfd(),
        cache_dir=cache_dir(environ),
        numa_nodes=count_numa_nodes(),
    )


def author_of(given: str | None) -> str:
    """Who promotes: as given, else AUTOTUNE_AUTHOR, else the login name; empty where the machine knows none."""
    said = given or os.environ.get("AUTOTUNE_AUTHOR")
    if said:
        return said
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, in a container
        return ""


def has_kfd() -> bool:
    """Whether AMD's driver is here."""
    return Path("/dev/kfd").exists()


def places_of(studies_dir: Path, storage: str | None) -> Places:
    """Where results are, and how long a busy database is waited for (AUTOTUNE_BUSY_TIMEOUT_S, 60 by default).

    Raises:
        InvalidOption: that variable holds no number of seconds.
    """
    from autotune.errors import InvalidOption
    from autotune.store.places import Places

    places = Places(root=studies_dir, storage=storage or None)
    text = os.environ.get(BUSY_TIMEOUT_NAME)
    if not text:
        return places
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= 86400:
        raise InvalidOption(BUSY_TIMEOUT_NAME, text, "seconds, from 0 to 86400")
    return replace(places, busy_timeout_s=seconds)
