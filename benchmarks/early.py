"""What early ends save and cost: `python -m benchmarks.early [--json] [--seeds 200] [--studies-dir DIR STUDY ...]`.

Studies are recorded with every trial measured to its end, then replayed with early ends (`--confidence`), each seed in
another order of another choice of its configs, the baseline first. The table says how often the front is the same, how
many trials ended early, and what that saved of the measuring and of the whole study.

Without `--studies-dir` the studies are recorded here, on simulated nodes in virtual time, configs drawn at random from
the space that `autotune plan` makes: a random search has more to end early than a good sampler. With it, they are
finished studies of that folder, real ones too, whose raw records are still there (run them with `--abandon off`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from autotune.cli.surroundings import places_of
from autotune.engine.base import LaunchPlan, Milestone, ServerIdentity
from autotune.engine.simulated import SimulatedEngine
from autotune.errors import AutotuneError
from autotune.load.records_file import level_path, read_records
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import ABANDON_CONFIDENCE, EngineChoice, Recipe
from autotune.records import Config, LevelRole, LoadLevel, LoadPlan, Origin, Phase, Trial
from autotune.scheduling.seats import Seats
from autotune.store.repository import Store
from autotune.trial import TrialOrder, run_trial
from benchmarks.early_replay import Recorded, Replay, replayed, waited

FORMAT = 1
GOAL = 0.95
"""Share of seeds whose front is to be the same."""

CHOSEN = 2 / 3
"""Of a recorded study's configs, those of one replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What is recorded."""

    node: str
    model: str
    workload: str

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.node} {Path(self.model).name} {self.workload}"


LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SITUATIONS = (
    Situation(node="1xH100-80GB", model=LLAMA, workload="chat"),
    Situation(node="4xA100-80GB-NVLink", model=LLAMA, workload="chat"),
    Situation(node="1xH100-80GB", model=LLAMA, workload="rag"),
)


def main() -> int:
    """Record, replay, print; 1 where a study cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--seeds", type=int, default=200, help="replays of each study")
    parser.add_argument("--configs", type=int, default=24, help="recorded of each simulated situation")
    parser.add_argument("--confidence", type=float, default=ABANDON_CONFIDENCE)
    parser.add_argument("--studies-dir", type=Path)
    parser.add_argument("studies", nargs="*", help="names of studies in that folder")
    args = parser.parse_args()
    if bool(args.studies_dir) != bool(args.studies):
        parser.error("--studies-dir and names of studies come together")
    if args.seeds < 1 or args.configs < 3 or not 0.5 <= args.confidence < 1:
        parser.error("--seeds takes 1 or more, --configs 3 or more, --confidence 0.5 to below 1")
    try:
        studies = (
            {name: stored(args.studies_dir, name) for name in args.studies}
            if args.studies_dir
            else {one.name: recorded(one, args.configs) for one in SITUATIONS}
        )
    except (AutotuneError, OSError) as error:
        print(f"early ends benchmark: {error}", file=sys.stderr)
        return 1
    rows = [row(name, replays(study, args.seeds, args.confidence)) for name, study in studies.items()]
    show(rows, args.seeds, args.confidence, as_json=args.json)
    return 0


def replays(study: Sequence[Recorded], seeds: int, confidence: float) -> list[Replay]:
    """The study in other orders, of other choices of its configs; the baseline is always first."""
    found = []
    for seed in range(seeds):
        rng = random.Random(seed)
        others = rng.sample(study[1:], max(2, math.ceil(CHOSEN * len(study[1:]))))
        found.append(replayed([study[0], *others], confidence))
    return found


def row(name: str, found: Sequence[Replay]) -> dict[str, Any]:
    """One study's figures over all its replays."""
    ends = [end for one in found for end in one.ends]
    trials = sum(one.trials for one in found)
    off = [abs(math.log(end.full / end.shown)) for end in ends if end.shown > 0 and end.full > 0]
    return {
        "study": name,
        "same_front": sum(one.same_front for one in found) / len(found),
        "early_share": len(ends) / trials,
        "saturated_share": sum(end.reason.value == "saturated" for end in ends) / trials,
        "wrong": sum(end.wrong for end in ends),
        "saved_of_levels": _share(found, lambda one: one.later_s),
        "saved_of_study": _share(found, lambda one: one.total_s),
        "saved_s_each": median(end.saved_s for end in ends) if ends else None,
        "p95_off_median": median(off) if off else None,
        "p95_off_most": max(off) if off else None,
    }


def _share(found: Sequence[Replay], of: Callable[[Replay], float]) -> float:
    whole = sum(of(one) for one in found)
    return sum(one.saved_s for one in found) / whole if whole else 0.0


def show(rows: Sequence[dict[str, Any]], seeds: int, confidence: float, *, as_json: bool) -> None:
    """The table, or one JSON object."""
    least = min(one["same_front"] for one in rows)
    if as_json:
        found = {"format": FORMAT, "seeds": seeds, "confidence": confidence, "goal": GOAL, "least_same_front": least}
        print(json.dumps({**found, "met": least >= GOAL, "studies": list(rows)}))
        return
    print(f"{seeds} replays of each study, confidence {confidence:g}")
    print(f"{'study':58}{'same front':>12}{'early':>8}{'queue':>8}{'of TTFT level':>15}{'of study':>10}{'each':>8}")
    for one in rows:
        each = "-" if one["saved_s_each"] is None else f"{one['saved_s_each']:.1f} s"
        print(
            f"{one['study']:58}{one['same_front']:>12.1%}{one['early_share']:>8.1%}{one['saturated_share']:>8.1%}"
            f"{one['saved_of_levels']:>15.1%}{one['saved_of_study']:>10.1%}{each:>8}"
        )
    for one in rows:
        if one["p95_off_median"] is not None:
            print(
                f"{one['study']}: p95 shown and the whole level's are {math.expm1(one['p95_off_median']):.0%} apart "
                f"(median), {math.expm1(one['p95_off_most']):.0%} at most"
            )
    print(f"goal: the same front in {GOAL:.0%} of the seeds: {'met' if least >= GOAL else 'missed'} ({least:.1%})")


def stored(studies_dir: Path, name: str) -> list[Recorded]:
    """A finished study's measured trials, launches again left out.

    Raises:
        AutotuneError: there is no such study, or its raw records are gone.
    """
    found = []
    with Store.open(places_of(studies_dir, None).database, create=False, busy_timeout_s=10) as store:
        for trial in store.trials(name):
            level = trial.result.of_role(LevelRole.TTFT) if trial.result else None
            if trial.measured and trial.repeat_of is None and level is not None and trial.directory is not None:
                records = read_records(level_path(Path(trial.directory), level.level)).records
                found.append(Recorded(trial=trial, waited=waited(records)))
    if len(found) < 3:
        raise AutotuneError(f"study {name!r} has {len(found)} measured trials, and a replay takes three")
    return found


def recorded(situation: Situation, configs: int, *, seed: int = 0) -> list[Recorded]:
    """A study on a simulated node: the baseline, then configs drawn at random, every trial measured to its end."""
    with tempfile.TemporaryDirectory(prefix="early-") as folder:
        plan = plan_of(situation, Path(folder))
        drawn = random.Random(seed).sample(plan.feasible, min(configs - 1, len(plan.feasible)))
        return asyncio.run(_record(plan, [plan.baseline, *(plan.complete(one) for one in drawn)], Path(folder), seed))


def plan_of(situation: Situation, folder: Path) -> StudyPlan:
    """The plan that a study of it would have."""
    here = Surroundings(environ={}, home=folder, probe=None, shm_bytes=None, has_kfd=False, cache_dir=folder / "cache")
    recipe = Recipe(
        name="early",
        model=situation.model,
        workload=situation.workload,
        node=situation.node,
        engine=EngineChoice.SIMULATED,
    )
    return make_plan(recipe, here)


async def _record(plan: StudyPlan, configs: Sequence[Config], folder: Path, seed: int) -> list[Recorded]:
    engine = SimulatedEngine(
        node=plan.node, shape=plan.shape, shapes=dict(plan.checkpoints), seed=seed, fixed=plan.extra
    )
    load: LoadPlan | None = None
    found = []
    for number, config in enumerate(configs):
        directory = folder / f"trial-{number}"
        directory.mkdir()
        gpus = plan.gpus_of(config)
        run = await run_trial(
            engine, _order(plan, config, number, gpus, load, directory, seed), clock=engine.now, observer=_Nobody()
        )
        load = load or run.load
        origin = Origin.SAMPLER if number else Origin.BASELINE
        trial = Trial(number=number, config=config, origin=origin, gpus=gpus, attempts=1, result=run.result)
        level = run.result.of_role(LevelRole.TTFT)
        if trial.measured and level is not None:
            records = read_records(level_path(directory, level.level)).records
            found.append(Recorded(trial=trial, waited=waited(records)))
    return found


def _order(
    plan: StudyPlan, config: Config, number: int, gpus: int, load: LoadPlan | None, directory: Path, seed: int
) -> TrialOrder:
    recipe = plan.recipe
    return TrialOrder(
        number=number,
        launch=LaunchPlan(
            model=plan.model_of(config),
            config=config,
            gpu_indices=Seats(plan.node).whole(plan.demand_of(config)).indices,
            extra_args=(),
            directory=directory,
            start_deadline_s=recipe.start_deadline_s,
            stall_deadline_s=recipe.stall_deadline_s,
            trial=number,
        ),
        workload=plan.workload,
        load=load,
        gpus=max(1, gpus),
        seed=seed,
        level_deadline_s=recipe.level_deadline_s,
    )


class _Nobody:
    """An observer that looks away."""

    def phase(self, phase: Phase, elapsed_s: float) -> None: ...

    def identity(self, identity: ServerIdentity) -> None: ...

    def milestone(self, milestone: Milestone) -> None: ...

    def level(self, level: LoadLevel) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
