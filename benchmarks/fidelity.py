"""How far the simulation is from recorded loads: `python -m benchmarks.fidelity [--data FILE.jsonl] [--json]`.

Each line of the file names a server's flags, the arguments of `vllm bench serve`, and what was measured (the format of
tests/data/h200). *Before* is predicted from the data sheet alone. *After* is calibrated on trials - one server with all
its loads - that the model chose by itself, and is judged on servers with other flags; KV capacities are predicted too.
Servers of several GPUs begin with the coefficients that one GPU gave: data-parallel ones are judged as they are,
tensor- and pipeline-parallel ones after one trial of their kind, or one load of it where there is a single trial.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, InvalidFile
from autotune.node.gpus import parse_node_name
from autotune.node.memory import estimate
from autotune.simulator.calibrate import UNCERTAINTIES, Calibration, calibrate, informative
from autotune.simulator.coefficients import DATASHEET, Coefficients
from autotune.simulator.measured import MeasuredLoad, Repeated
from autotune.simulator.recorded import RecordedLoad, measured_load, read_recorded
from benchmarks.fidelity_figures import Fidelity, Predicted, config_blind, fidelity
from benchmarks.fidelity_text import table, verdicts

DATA = Path(__file__).parent.parent / "tests" / "data" / "h200" / "results.jsonl"
MODELS = {"llama8b": "meta-llama/Llama-3.1-8B-Instruct", "moe30b": "Qwen/Qwen3-30B-A3B"}
"""Models behind the short names that recorded rows use."""
TRIALS = 3
SEEDS, FIT_SEEDS = 3, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A recorded load, ready to be simulated with a predicted KV capacity."""

    recorded: RecordedLoad
    load: MeasuredLoad

    @property
    def config(self) -> str:
        """Model and flags; equal for two launches of the same."""
        return " ".join((self.recorded.model or "", *self.recorded.flags))


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Predictions with one set of coefficients.

    Attributes:
        judged: rows of other flags than the trials that were calibrated on, which are in `known`.
    """

    calibrated_on: tuple[str, ...]
    judged: tuple[Predicted, ...]
    known: tuple[Predicted, ...]

    @property
    def fidelity(self) -> Fidelity:
        """The figures over the judged rows."""
        return fidelity(self.judged, self.known)


def main() -> int:
    """Print the table or one JSON object; 1 when the data cannot be read."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--gpu", default="H200-141GB", help="what each of the servers' GPUs is")
    parser.add_argument("--model", default=MODELS["llama8b"], help="of rows whose model is not known by name")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    try:
        report = judge(read_rows(args.data, gpu=args.gpu, model=args.model))
    except (AutotuneError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=2) if args.json else "\n".join(table(report)))
    return 0


def read_rows(path: Path, *, gpu: str, model: str) -> list[Row]:
    """The recorded loads of `path`.

    Raises:
        InvalidFile: no line is one, or one cannot be read.
    """
    rows = []
    for recorded in read_recorded(path):
        name = MODELS.get(recorded.model or "", model)
        node = f"{_gpus(recorded.flags)}x{gpu}"
        load = measured_load(recorded, node=node, model=name)
        capacity = estimate(load.shape, parse_node_name(node).gpus[0], load.settings).kv_tokens
        rows.append(Row(recorded=recorded, load=measured_load(recorded, node=node, model=name, kv_tokens=capacity)))
    if not rows:
        raise InvalidFile(str(path), "all lines", "no recorded load", "at least one")
    return rows


def _gpus(flags: Sequence[str]) -> int:
    text, gpus = " ".join(flags), 1
    for flag in ("tensor-parallel-size|-tp", "pipeline-parallel-size|-pp", "data-parallel-size|-dp"):
        long, short = flag.split("|")
        found = re.search(rf"(?:^| )(?:--{long}|{short})[ =](\d{{1,4}})(?: |$)", text)
        gpus *= int(found[1]) if found else 1
    return gpus


def judge(rows: Sequence[Row], *, seeds: int = SEEDS) -> dict[str, Any]:
    """The report: what the JSON holds.

    Args:
        seeds: simulations behind every prediction.
    """
    single = [row for row in rows if row.load.settings.gpus == 1]
    several = [row for row in rows if row.load.settings.gpus > 1]
    before = Judgement(calibrated_on=(), judged=predictions(single, DATASHEET, seeds), known=())
    trials = _by_config(single)
    order = informative([[row.load for row in trial] for trial in trials], DATASHEET, TRIALS) if trials else ()
    steps = [_after(trials, order[:count], seeds) for count in (1, TRIALS)] if trials else []
    start = steps[-1][1] if steps else None
    after = steps[-1][0] if steps else before
    judged_configs = {row.config for row in after.judged}
    same = [row for row in before.judged if row.config in judged_configs]
    report = {
        "schema": "autotune-fidelity",
        "version": 1,
        "before": asdict(before.fidelity),
        "before_on_rows_of_after": asdict(fidelity(same, [row for row in before.judged if row not in same])),
        "after_one": _described(steps[0][0]) if steps else None,
        "after": _described(after),
        "config_blind": config_blind(after.judged, before.judged),
        "multi_gpu": judge_several(several, start, seeds),
        "coefficients": None if start is None else _changes(start),
        "rows": [*_rows(before, after)],
    }
    return {**report, "goals": verdicts(report)}


def _by_config(rows: Iterable[Row]) -> list[list[Row]]:
    trials: dict[str, list[Row]] = {}
    for row in rows:
        trials.setdefault(row.config, []).append(row)
    return list(trials.values())


def predictions(rows: Sequence[Row], coefficients: Coefficients, seeds: int) -> tuple[Predicted, ...]:
    """Each row as these coefficients have it."""
    return tuple(_predicted(row, coefficients, seeds) for row in rows)


def _predicted(row: Row, coefficients: Coefficients, seeds: int) -> Predicted:
    predicted, preempted = Repeated(row.load).figures(coefficients, seeds=seeds)
    return Predicted(
        name=row.recorded.name,
        load=row.recorded.load,
        config=row.config,
        measured=row.load.measured,
        predicted=predicted,
        kv_tokens=row.recorded.kv_tokens,
        kv_tokens_predicted=row.load.kv_tokens,
        preemptions=row.recorded.metrics.get("num_preemptions_total") or 0,
        preemptions_predicted=preempted,
    )


def _after(trials: Sequence[Sequence[Row]], chosen: Sequence[int], seeds: int) -> tuple[Judgement, Calibration]:
    """Calibrated on the chosen trials, first launch of each; judged on those with other flags."""
    used = [row for index in chosen for row in trials[index]]
    others = [row for index, trial in enumerate(trials) if index not in chosen for row in trial]
    first = [row for index in chosen for row in trials[index] if row.recorded.name == trials[index][0].recorded.name]
    found = calibrate([row.load for row in first], DATASHEET, seeds=min(seeds, FIT_SEEDS))
    judgement = Judgement(
        calibrated_on=tuple(trials[index][0].recorded.name for index in chosen),
        judged=predictions(others, found.coefficients, seeds),
        known=predictions(used, found.coefficients, seeds),
    )
    return judgement, found


_KINDS: Mapping[str, Callable[[MeasuredLoad], bool]] = {
    "data_parallel": lambda load: load.settings.tensor_parallel == 1 and load.settings.pipeline_parallel == 1,
    "tensor_parallel": lambda load: load.settings.tensor_parallel > 1 and load.settings.pipeline_parallel == 1,
    "pipeline_parallel": lambda load: load.settings.pipeline_parallel > 1,
}


def judge_several(rows: Sequence[Row], start: Calibration | None, seeds: int) -> dict[str, Any] | None:
    """Servers of several GPUs, all together and by kind; None without any."""
    if not rows:
        return None
    found = {
        kind: _of_kind([row for row in rows if is_of(row.load)], start, kind, seeds) for kind, is_of in _KINDS.items()
    }
    parts = [part for part in found.values() if part is not None]
    judged = [row for part in parts for row in part.judged]
    known = [row for part in parts for row in part.known]
    return {
        **asdict(fidelity(judged, known)),
        **{kind: None if part is None else _described(part) for kind, part in found.items()},
        "rows_judged": [_row(row) for row in judged],
    }


def _of_kind(rows: Sequence[Row], start: Calibration | None, kind: str, seeds: int) -> Judgement | None:
    if not rows:
        return None
    prior = DATASHEET if start is None else start.coefficients
    if kind == "data_parallel":
        return Judgement(calibrated_on=(), judged=predictions(rows, prior, seeds), known=())
    uncertainties = {**UNCERTAINTIES, **({} if start is None else start.spreads)}
    trials = _by_config(rows)
    if len(trials) == 1:
        trials = [[row] for row in rows]
    (chosen,) = informative([[row.load for row in trial] for trial in trials], prior, 1, uncertainties=uncertainties)
    fitted = calibrate(
        [row.load for row in trials[chosen]], prior, uncertainties=uncertainties, seeds=min(seeds, FIT_SEEDS)
    ).coefficients
    others = [row for index, trial in enumerate(trials) if index != chosen for row in trial]
    first = trials[chosen][0].recorded
    return Judgement(
        calibrated_on=(first.name if len(trials[chosen]) > 1 else f"{first.name}/{first.load}",),
        judged=predictions(others, fitted, seeds),
        known=predictions(trials[chosen], fitted, seeds),
    )


def _described(judgement: Judgement) -> dict[str, Any]:
    return {"calibrated_on": list(judgement.calibrated_on), **asdict(judgement.fidelity)}


def _changes(found: Calibration) -> dict[str, dict[str, float]]:
    return {
        name: {
            "data_sheet": getattr(DATASHEET, name),
            "calibrated": getattr(found.coefficients, name),
            "log_spread": spread,
        }
        for name, spread in found.spreads.items()
    }


def _rows(before: Judgement, after: Judgement) -> Iterable[dict[str, Any]]:
    judged = {id(row) for row in after.judged}
    found = {(row.name, row.load): row for row in (*after.judged, *after.known)}
    for row in before.judged:
        then = found[row.name, row.load]
        yield {
            **_row(row),
            "judged_after": id(then) in judged,
            "after": asdict(then.predicted),
            "errors_after": then.errors,
            "preemptions_after": then.preemptions_predicted,
        }


def _row(row: Predicted) -> dict[str, Any]:
    return {
        "name": row.name,
        "load": row.load,
        "measured": asdict(row.measured),
        "predicted": asdict(row.predicted),
        "errors": row.errors,
        "kv_tokens": row.kv_tokens,
        "kv_tokens_predicted": row.kv_tokens_predicted,
        "preemptions": row.preemptions,
        "preemptions_predicted": row.preemptions_predicted,
    }


if __name__ == "__main__":
    sys.exit(main())
