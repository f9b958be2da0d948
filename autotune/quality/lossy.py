"""Which parameters change what a model computes. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.records import Config, Value

LOSSY = frozenset(
    {
        "model",  # a config's own checkpoint: a quantised one of the same model
        "dtype",
        "quantization",
        "quantization-param-path",
        "kv-cache-dtype",
        "calculate-kv-scales",
        "mamba-cache-dtype",
        "mamba-ssm-cache-dtype",
        "hf-overrides",
        "rope-scaling",
        "rope-theta",
    }
)
"""Flags by which numbers are stored or computed otherwise, whatever a space says of them."""

_DEFAULT = "auto"


def lossy_names(marked: Iterable[str] = ()) -> frozenset[str]:
    """All such parameters; `marked` are those that a search space says it of."""
    return LOSSY | frozenset(marked)


def lossy_changes(config: Config, reference: Config, names: frozenset[str]) -> tuple[str, ...]:
    """By what `config` computes other numbers than `reference`: `name=value`, in order of names.

    That a value is vLLM's default written out is known of `auto` only: rather a question too many.
    """
    ours, theirs = config.as_dict(), reference.as_dict()
    changed = [name for name in sorted(names) if _differs(ours.get(name), theirs.get(name))]
    return tuple(f"{name}={_spelled(ours.get(name))}" for name in changed)


def _differs(ours: Value, theirs: Value) -> bool:
    plain = [_DEFAULT if value is None or value is False else value for value in (ours, theirs)]
    return plain[0] != plain[1] or isinstance(plain[0], bool) != isinstance(plain[1], bool)


def _spelled(value: Value) -> str:
    return _DEFAULT if value is None else str(value).lower() if isinstance(value, bool) else str(value)
