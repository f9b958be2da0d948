"""What a replay follows from, as a hash: two replays of the same hash are the same."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.bench.contenders import SamplerName
from autotune.records import Config
from autotune.search.prior.expectation import Prior

_FORMAT = 1
_ABOVE = frozenset({"cli", "web"})
"""Rooms that `bench/` may not import, so that nothing of them is in a replay. `lint-imports` holds it to that."""

_LIBRARIES = ("numpy", "numba", "optuna")
_LIBRARIES_GP = ("scipy", "torch")
"""That Optuna's GP sampler calculates with besides; so the other samplers' replays are the same without torch."""


_PACKAGE = Path(__file__).resolve().parents[1]


def code_hash(package: Path = _PACKAGE) -> str:
    """Over every file of the program that a replay may follow from, data files included."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*")):
        place = path.relative_to(package)
        if place.parts[0] in _ABOVE or "__pycache__" in place.parts or _is_an_editors(path) or not path.is_file():
            continue
        content = path.read_bytes()
        digest.update(f"{place.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def _is_an_editors(path: Path) -> bool:
    """Swap files and copies that come and go while somebody reads the code."""
    return path.name.startswith((".", "#")) or path.name.endswith(("~", ".swp", ".tmp", ".orig"))


def recorded_hash(content: bytes, configs: Sequence[Config], prior: Prior | None) -> str:
    """Of a recorded study: its file, and what is believed of its configs, as a model's own files are not in there."""
    digest = hashlib.sha256(content)
    if prior is not None:
        found = prior.expect(configs)
        for array in (found.log_throughput, found.log_ttft, found.feasible, found.minutes):
            digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def replay_key(code: str, surface: str, sampler: SamplerName, seed: int) -> str:
    """Of one replay.

    Args:
        code: of `code_hash`.
        surface: a simulated node's name, all else of which is code; or the `recorded_hash` of a recorded study.
    """
    libraries = _LIBRARIES + (_LIBRARIES_GP if sampler is SamplerName.GP else ())
    told = (
        _FORMAT, code, surface, str(sampler), seed, platform.python_version(), platform.machine(),
        *((name, _version(name)) for name in libraries),
    )  # fmt: skip
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:32]


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
