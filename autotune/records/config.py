"""Closed sets of words, and the config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

Value = bool | int | float | str | None
"""A flag's value: None leaves vLLM's own default, True/False pick `--flag` / `--no-flag`."""


class EngineKind(StrEnum):
    """Where servers come from."""

    SIMULATED = "simulated"
    PROCESS = "process"


class ClockKind(StrEnum):
    """What a duration was measured on; stored with every figure."""

    WALL = "wall"
    VIRTUAL = "virtual"


class Outcome(StrEnum):
    """How a trial ended."""

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    FAULTED = "faulted"
    ABANDONED = "abandoned"


class Origin(StrEnum):
    """Who proposed a trial's config.

    A validation is a repeat under prompts and arrivals that no other trial had, a probe the baseline launched beside
    others, to see what neighbours cost.
    """

    BASELINE = "baseline"
    ENQUEUED = "enqueued"
    SAMPLER = "sampler"
    REPEAT = "repeat"
    VALIDATION = "validation"
    PROBE = "probe"


class Phase(StrEnum):
    """What an attempt is doing; every change is stored."""

    WAITING = "waiting"
    LAUNCHING = "launching"
    WARMING = "warming"
    MEASURING = "measuring"
    STOPPING = "stopping"
    ENDED = "ended"


class FailureClass(StrEnum):
    """Root causes, in the words of `autotune diagnose`."""

    OOM_AT_LOAD = "oom_at_load"
    OOM_AT_WARMUP = "oom_at_warmup"
    OOM_UNDER_LOAD = "oom_under_load"
    KV_CACHE_NONE = "kv_cache_none"
    KV_CACHE_TOO_SMALL = "kv_cache_too_small"
    STATE_CACHE_TOO_SMALL = "state_cache_too_small"
    GPU_BUSY = "gpu_busy"
    GPU_COUNT = "gpu_count"
    INDIVISIBLE = "indivisible"
    INVALID_FLAG = "invalid_flag"
    INVALID_COMBINATION = "invalid_combination"
    KV_DTYPE_UNSUPPORTED = "kv_dtype_unsupported"
    MODEL_ACCESS = "model_access"
    MODEL_UNKNOWN = "model_unknown"
    DRIVER = "driver"
    NCCL = "nccl"
    SHARED_MEMORY = "shared_memory"
    PORT_IN_USE = "port_in_use"
    COMPILE_CACHE = "compile_cache"
    COMPILE_FAILED = "compile_failed"
    MISSING_DEPENDENCY = "missing_dependency"
    SLO_MISSED = "slo_missed"
    NODE_LOST = "node_lost"
    HANG = "hang"
    CRASH = "crash"
    HEALTHY = "healthy"


STUDY_FATAL_CLASSES = frozenset(
    {
        FailureClass.DRIVER,
        FailureClass.MODEL_ACCESS,
        FailureClass.MODEL_UNKNOWN,
        FailureClass.MISSING_DEPENDENCY,
    }
)
"""No config cures these: the study stops."""

ENVIRONMENT_CLASSES = frozenset(
    {
        FailureClass.GPU_BUSY,
        FailureClass.NCCL,
        FailureClass.SHARED_MEMORY,
        FailureClass.PORT_IN_USE,
        FailureClass.COMPILE_CACHE,
        FailureClass.NODE_LOST,
        FailureClass.HANG,
        FailureClass.CRASH,
    }
)
"""Bounded retry, nothing taught; HANG and CRASH turn infeasible when every attempt repeats them."""

INFEASIBLE_CLASSES = frozenset(FailureClass) - STUDY_FATAL_CLASSES - ENVIRONMENT_CLASSES - {FailureClass.HEALTHY}
"""The config is bad: the sampler learns it."""


_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
"""One encoder for all hashes: `json.dumps` makes one a call, which takes three times as long as the rest."""


@dataclass(frozen=True, kw_only=True)  # no slots: a hash that was worked out is kept
class Config:
    """One value per parameter, ordered by name.

    A parameter is a `vllm serve` flag without its dashes (`max-num-seqs`) or an environment variable of the server
    (`env:VLLM_CPU_KVCACHE_SPACE`).
    """

    params: tuple[tuple[str, Value], ...]

    @classmethod
    def of(cls, values: Mapping[str, Value]) -> Config:
        """A config from a mapping; order of keys does not matter."""
        return cls(params=tuple(sorted(values.items())))

    @classmethod
    def stored(cls, params: Iterable[tuple[str, Value]], known: str) -> Config:
        """A config whose hash was worked out and kept when it was stored; it is not worked out again.

        Args:
            params: in order of their names.
        """
        config = cls(params=tuple(params))
        config.__dict__["hash"] = known
        return config

    def __iter__(self) -> Iterator[tuple[str, Value]]:
        return iter(self.params)

    def get(self, name: str, default: Value = None) -> Value:
        """The value of a parameter, or `default` when the config does not name it."""
        return dict(self.params).get(name, default)

    def as_dict(self) -> dict[str, Value]:
        """A fresh mapping of the parameters."""
        return dict(self.params)

    @cached_property
    def hash(self) -> str:
        """Canonical hash, 12 hex digits. A None value (vLLM's default) hashes like an absent parameter."""
        given = {name: value for name, value in self.params if value is not None}
        return hashlib.sha256(_canonical(given).encode()).hexdigest()[:12]
