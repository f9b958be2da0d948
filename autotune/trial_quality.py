"""The quality guard within a trial: asked after the load, on the server that is there anyway."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.engine.base import Server
from autotune.quality.answers import read_answers, write_answers
from autotune.quality.compare import compare
from autotune.quality.prompts import PromptSet
from autotune.records import Quality, QualityState, QualityThresholds

DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityOrder:
    """What to ask, and what the answers are compared with.

    Attributes:
        lossy: by what the config computes other numbers than the reference; empty for the reference itself.
        reference: folder of the launch whose answers count; None for the first launch of the reference.
        label: of that launch, e.g. `trial 0`.
        ask: False for a config that computes what the reference does, when that has answered already.
    """

    prompts: PromptSet
    thresholds: QualityThresholds
    lossy: tuple[str, ...] = ()
    reference: Path | None = None
    label: str | None = None
    ask: bool = True
    deadline_s: float = DEADLINE_S


async def ask_quality(server: Server, order: QualityOrder, directory: Path, *, simulated: bool) -> Quality:
    """Ask, keep the answers in `directory`, compare.

    Raises:
        StorageError: the answers cannot be kept.
    """
    prompts = order.prompts
    found = Quality(
        state=QualityState.REFERENCE if not order.lossy else QualityState.NOT_MEASURABLE,
        why="",
        prompt_set=prompts.name,
        reference=order.label,
        lossy=order.lossy,
        simulated=simulated,
    )
    if not order.ask:
        return replace(found, state=QualityState.LOSSLESS, why=f"it computes what {order.label} does")
    answers = await server.ask(prompts.prompts, output_tokens=prompts.output_tokens, deadline_s=order.deadline_s)
    found = replace(found, seconds=answers.seconds)
    if answers.problem is not None:
        return replace(found, state=QualityState.NOT_MEASURABLE, why=answers.problem)
    await asyncio.to_thread(write_answers, directory, prompts.name, answers)
    if order.reference is None:
        if order.lossy:
            return replace(found, why="there are no answers of a reference config to compare with")
        return replace(found, why="others are compared with it", prompts=len(answers.answers))
    reference = await asyncio.to_thread(read_answers, order.reference, prompts.name)
    if reference is None:
        return replace(found, state=QualityState.NOT_MEASURABLE, why="the reference's answers cannot be read back")
    subjects = {one.name: one.subject for one in prompts.prompts}
    return await asyncio.to_thread(compare, found, reference, answers.answers, order.thresholds, subjects)
