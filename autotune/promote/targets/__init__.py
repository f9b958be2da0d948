"""One file per target; each renders a deployment into files, purely and deterministically to the byte."""

from autotune.promote.targets.registry import Target, render

__all__ = ["Target", "render"]
