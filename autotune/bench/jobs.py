"""Which studies a run of the benchmark replays, and in which order. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.bench.contenders import SamplerName
from autotune.bench.summary import Study

SEEDS = 7
"""Per simulated node and sampler: 56 studies pooled over eight nodes."""

SEEDS_RECORDED = 56
"""Per recording that comes with the program: as many as are pooled. Where one of five configs is the right one, a draw
finds it after 2, 3, 4 or 5 launches with the same probability, and the median of seven draws is 2 or 5 in one case of
seven."""

SEEDS_SLOW = 2
SLOW = frozenset({SamplerName.GP})
QUICK_NODES = ("1xH100-8B-chat", "4xA100-70B-chat", "4xL40S-70B-PCIe")
QUICK_SEEDS = 3
WORKERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One study to replay.

    Attributes:
        surface: the name of a node of `situations.NODES`, or the path of a recorded study.
    """

    surface: str
    sampler: SamplerName
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to run.

    Attributes:
        nodes: names out of `situations.NODES`.
        files: recorded studies.
        seeds, seeds_recorded: studies of each sampler on each of the nodes, and on each of the files.
        cache_dir: where truths are kept; None for nowhere.
    """

    nodes: tuple[str, ...]
    files: tuple[Path, ...]
    samplers: tuple[SamplerName, ...]
    seeds: int
    seeds_recorded: int
    cache_dir: Path | None
    workers: int = WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What came of a run.

    Attributes:
        studies: in the order of `jobs_of`, whatever finished first; some are missing where it was `stopped`.
        asked: how many there would be.
        taken_over: of `studies`, those that were finished before.
        stopped: why it ended before the last one; None where it did not.
    """

    studies: tuple[Study, ...]
    asked: int
    taken_over: int
    stopped: str | None = None


def jobs_of(asked: Asked) -> tuple[Job, ...]:
    """All studies, surface by surface, the slow samplers of each first; one that is named twice counts once."""
    seeds = dict.fromkeys(asked.nodes, asked.seeds) | dict.fromkeys(map(str, asked.files), asked.seeds_recorded)
    return tuple(
        Job(surface=surface, sampler=sampler, seed=seed)
        for surface, count in seeds.items()
        for sampler in asked.samplers
        for seed in range(min(count, SEEDS_SLOW) if sampler in SLOW else count)
    )


def slow_first(samplers: Sequence[SamplerName]) -> tuple[SamplerName, ...]:
    """The order in which they run: the slowest study must not be the last one."""
    return tuple(sorted(samplers, key=lambda one: one not in SLOW))
