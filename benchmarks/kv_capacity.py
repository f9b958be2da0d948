"""Predicted against logged KV capacities: `python -m benchmarks.kv_capacity [--json] [--data FOLDER]`.

Two predictions per row. *Tokens*: from the logged available KV memory; within 0.5 % for plain attention and MLA, 5 %
where layers slide or keep states. *Available*: from GPU, flags and model alone; within the larger of 10 % and 2 % of
the card's memory. A row that does not state enough, or is known to miss, is named with its reason.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.node.defaults import ResolvedSettings, Version, parse_version, resolve
from autotune.node.memory import estimate, kv_layout_of, kv_tokens_from_bytes, longest_request
from autotune.node.model_shape import load_shape, shape_from_config
from autotune.records import AttentionKind, Config, Experts, Gpu, LayerAttention, LayerShape, Link, ModelShape, Node
from autotune.units import GIB

DATA = Path(__file__).parent.parent / "tests" / "data" / "memory"
NO_CACHE = {"HF_HUB_CACHE": "/nonexistent"}
PLAIN_SHARE, MIXED_SHARE = 0.005, 0.05
AVAILABLE_SHARE, CARD_SHARE = 0.10, 0.02
H200_GIB = 139.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One logged start with what was predicted; None for what the log or the row does not state.

    Attributes:
        tokens_limit, available_limit: largest error that is accepted, as a share and in GiB.
        derived: the logged memory was computed back from the tokens.
        blind_gib: available memory as it was predicted before the start, by the model of that day.
    """

    row: str
    model: str
    gpu: str
    source: str
    kv_gib: float | None = None
    derived: bool = False
    tokens: float | None = None
    tokens_predicted: float | None = None
    tokens_limit: float | None = None
    what: str = "tokens"
    available_predicted: float | None = None
    available_limit: float | None = None
    weights_gib: float | None = None
    weights_predicted: float | None = None
    blind_gib: float | None = None
    unmet: str = ""
    unmet_whole: str = ""

    @property
    def tokens_error(self) -> float | None:
        """Relative error of the prediction from the logged memory."""
        if self.tokens is None or self.tokens_predicted is None:
            return None
        return self.tokens_predicted / self.tokens - 1

    @property
    def available_error_gib(self) -> float | None:
        """Error of the prediction from GPU, flags and model, GiB."""
        if self.kv_gib is None or self.available_predicted is None:
            return None
        return self.available_predicted - self.kv_gib

    @property
    def missed(self) -> bool:
        """Whether a prediction is off by more than its limit, on a row that is not named as one that cannot be met."""
        tokens, available = self.tokens_error, self.available_error_gib
        return (not self.unmet and _beyond(tokens, self.tokens_limit)) or _beyond(available, self.available_limit)


def _beyond(error: float | None, limit: float | None) -> bool:
    return error is not None and limit is not None and abs(error) > limit


def rows(folder: Path = DATA) -> Iterator[Row]:
    """Every recorded start of `folder` with its predictions."""
    text = (folder / "capacities.yaml").read_text(encoding="utf-8")
    data = yaml.safe_load(text)
    shapes = {name: _shape(name, entry) for name, entry in data["models"].items()}
    for entry in data["rows"]:
        yield _public_row(entry, shapes.get(entry["model"]))
    for line in (folder / "h200-models.jsonl").read_text(encoding="utf-8").splitlines():
        yield _model_row(json.loads(line))
    shape = load_shape("meta-llama/Llama-3.1-8B", env=NO_CACHE)
    with (folder / "h200.csv").open(newline="") as file:
        for record in csv.DictReader(file):
            yield _h200_row(record, shape)


def _public_row(entry: Mapping[str, Any], shape: ModelShape | None) -> Row:
    named = {
        "row": entry["row"],
        "model": entry["model"] or "-",
        "gpu": entry["gpu"],
        "source": entry["source"],
        "kv_gib": entry.get("kv_gib"),
        "derived": entry.get("derived", False),
        "unmet": entry.get("unmet", ""),
        "unmet_whole": entry.get("unmet_whole", ""),
        "weights_gib": entry.get("weights_gib"),
    }
    if shape is None:
        return Row(**named)
    settings, version = _settings(entry), parse_version(entry["version"])
    found: dict[str, Any] = {}
    if entry.get("kv_gib") is not None and entry["kv_gib"] > 0:
        found |= _from_memory(entry, shape, settings, version)
    if entry.get("whole"):
        gpu = Gpu(index=0, name=entry["gpu"], memory_bytes=round(entry["gpu_gib"] * GIB))
        memory = estimate(shape, gpu, settings, version=version)
        found["available_predicted"] = memory.available_kv_bytes / GIB
        found["available_limit"] = max(AVAILABLE_SHARE * abs(entry["kv_gib"]), CARD_SHARE * entry["gpu_gib"])
    if entry.get("weights_gib") is not None:
        card = Gpu(index=0, name=entry["gpu"], memory_bytes=round(entry["gpu_gib"] * GIB))
        found["weights_predicted"] = estimate(shape, card, settings, version=version).weights_bytes_per_gpu / GIB
    return Row(**named, **found)


def _from_memory(
    entry: Mapping[str, Any], shape: ModelShape, settings: ResolvedSettings, version: Version
) -> dict[str, Any]:
    """What the logged memory holds, compared with the first of these that the log states."""
    layout, available = kv_layout_of(shape, settings), round(entry["kv_gib"] * GIB)
    block_bytes, per_request = max(layout.stage_block_bytes), layout.blocks_per_request(settings, version)
    predicted: float
    if "kv_tokens" in entry:
        what, key = "tokens", "kv_tokens"
        predicted = kv_tokens_from_bytes(shape, settings, available, version=version)
    elif "longest" in entry:
        what, key = "longest request", "longest"
        predicted = longest_request(shape, settings, available, version=version)
    elif "concurrency" in entry:
        what, key, predicted = "concurrency", "concurrency", available // block_bytes / per_request
    elif "needed_gib" in entry:
        what, key, predicted = "GiB per request", "needed_gib", per_request * block_bytes / GIB
    else:
        return {}
    limit = PLAIN_SHARE if len(layout.groups) == 1 else MIXED_SHARE
    return {
        "what": what,
        "tokens": float(entry[key]),
        "tokens_predicted": float(predicted),
        "tokens_limit": limit,
    }


def _model_row(record: Mapping[str, Any]) -> Row:
    """A start of one model on the recorded H200; `blind` is what was predicted before it was started."""
    shape = shape_from_config(record["config"], name=record["case"], file=record["case"])
    gpu = Gpu(index=0, name="H200", memory_bytes=round(H200_GIB * GIB), compute_capability=(9, 0))
    node = Node(name="1xH200-141GB", gpus=(gpu,), link=Link.NONE, simulated=False)
    settings = resolve(Config.of(record["flags"]), node, shape, record["version"])
    version = parse_version(record["version"])
    memory = estimate(shape, gpu, settings, version=version)
    return Row(
        row=record["case"],
        model=record["config"]["model_type"],
        gpu="H200",
        source=f"recorded, vLLM {record['version']}",
        kv_gib=record["kv_gib"],
        available_predicted=memory.available_kv_bytes / GIB,
        available_limit=max(AVAILABLE_SHARE * record["kv_gib"], CARD_SHARE * H200_GIB),
        weights_gib=record["weights_gib"],
        weights_predicted=memory.weights_bytes_per_gpu / GIB,
        blind_gib=record["blind"]["kv_gib"],
        **_from_memory(record, shape, settings, version),
    )


def _h200_row(record: Mapping[str, str], shape: ModelShape) -> Row:
    entry: dict[str, Any] = {
        "util": float(record["gpu_memory_utilization"]),
        "len": int(record["max_model_len"]),
        "seqs": int(record["max_num_seqs"]),
        "batched": int(record["max_num_batched_tokens"]),
        "kv_dtype": record["kv_cache_dtype"],
        "eager": record["enforce_eager"] == "true",
        "kv_gib": float(record["kv_gib"]),
    }
    if record["kv_tokens"]:
        entry["kv_tokens"] = int(record["kv_tokens"])
    settings, version = _settings(entry), (0, 25, 1)
    gpu = Gpu(index=0, name="H200", memory_bytes=round(H200_GIB * GIB))
    memory = estimate(shape, gpu, settings, compiled=record["compile_cache"] == "warm", version=version)
    found = _from_memory(entry, shape, settings, version) if record["kv_tokens"] else {}
    return Row(
        row=record["name"],
        model="llama-8b",
        gpu="H200",
        source="recorded, vLLM 0.25.1",
        kv_gib=entry["kv_gib"],
        available_predicted=memory.available_kv_bytes / GIB,
        available_limit=max(AVAILABLE_SHARE * abs(entry["kv_gib"]), CARD_SHARE * H200_GIB),
        **found,
    )


def _settings(entry: Mapping[str, Any]) -> ResolvedSettings:
    return ResolvedSettings(
        tensor_parallel=entry.get("tp", 1),
        pipeline_parallel=1,
        data_parallel=1,
        gpu_memory_utilization=entry.get("util", 0.9),
        max_model_len=entry.get("len", 8192),
        max_num_seqs=entry.get("seqs", 256),
        max_num_batched_tokens=entry.get("batched", 8192),
        kv_cache_dtype=entry.get("kv_dtype", "auto"),
        dtype="bfloat16",
        prefix_caching=True,
        chunked_prefill=True,
        enforce_eager=entry.get("eager", False),
        speculative_tokens=entry.get("speculative", 0),
    )


def _shape(name: str, entry: Mapping[str, Any]) -> ModelShape:
    if "catalogue" in entry:
        return load_shape(entry["catalogue"], env=NO_CACHE)
    attentions = [_attention(group) for group in entry["layers"] for _ in range(group["count"])]
    hidden, vocab = entry.get("hidden_size", 1), entry.get("vocab_size", 1)
    weights = round(entry.get("weights_gib", 0) * GIB)
    body = max(0, weights - 2 * 2 * hidden * vocab) // len(attentions)
    experts = Experts(**entry["experts"]) if "experts" in entry else None
    decoder = tuple(
        LayerShape(
            attention=attention,
            split_bytes=0 if experts else body,
            replicated_bytes=0,
            expert_bytes=body if experts else 0,
            parameters=body,
            active_parameters=body,
        )
        for attention in attentions
    )
    widest = max(attentions, key=lambda attention: attention.kv_heads)
    return ModelShape(
        name=name,
        layers=len(decoder),
        hidden_size=hidden,
        intermediate_size=entry.get("intermediate_size", 1),
        heads=entry.get("heads", widest.kv_heads),
        kv_heads=widest.kv_heads,
        head_dim=widest.head_dim,
        vocab_size=vocab,
        max_position_embeddings=entry.get("positions", 1),
        weight_bytes=weights,
        parameters=weights,
        weight_bits=entry.get("weight_bits", 16),
        decoder=decoder,
        experts=experts,
    )


def _attention(group: Mapping[str, Any]) -> LayerAttention:
    return LayerAttention(
        kind=AttentionKind(group["kind"]),
        kv_heads=group.get("kv_heads", 0),
        head_dim=group.get("head_dim", 0),
        window=group.get("window"),
        state_bytes=group.get("state_bytes", 0),
    )


def main() -> int:
    """Print the table; the exit status is 1 when a prediction misses its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, default=DATA, help="folder of capacities.yaml, h200-models.jsonl and h200.csv"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    found = list(rows(args.data))
    if args.json:
        print(json.dumps({"schema": 1, "rows": [_document(row) for row in found]}, indent=2))
    else:
        _print(found)
    return int(any(row.missed for row in found))


def _document(row: Row) -> dict[str, Any]:
    return {
        **asdict(row),
        "tokens_error": row.tokens_error,
        "available_error_gib": row.available_error_gib,
        "missed": row.missed,
    }


def _print(found: list[Row]) -> None:
    print(f"{'row':22}{'model':18}{'KV GiB':>9}{'logged':>12}{'predicted':>12}{'error':>9}   "
          f"{'from GPU and flags, GiB':>24}{'error':>8}{'limit':>7}{'weights':>17}")  # fmt: skip
    for row in found:
        logged = _cell(row.tokens, 0 if row.what in ("tokens", "longest request") else 2)
        predicted = _cell(row.tokens_predicted, 0 if row.what in ("tokens", "longest request") else 2)
        error = "-" if row.tokens_error is None else f"{100 * row.tokens_error:+.2f} %"
        weights = "-" if row.weights_predicted is None else f"{row.weights_gib:.2f} / {row.weights_predicted:.2f}"
        memory = _cell(row.kv_gib, 2) + ("*" if row.derived else " ")
        print(f"{row.row:22}{row.model:18}{memory:>9}{logged:>12}{predicted:>12}{error:>9}   "
              f"{_cell(row.available_predicted, 2):>24}{_cell(row.available_error_gib, 2):>8}"
              f"{_cell(row.available_limit, 2):>7}{weights:>17}{'  MISSED' if row.missed else ''}")  # fmt: skip
    print("* computed back from the tokens: proves nothing about them")
    blind = [100 * (row.blind_gib / row.kv_gib - 1) for row in found if row.blind_gib is not None and row.kv_gib]
    if blind:
        worst = max(blind, key=abs)
        print(f"{len(blind)} starts were predicted before they were made: available memory at worst {worst:+.2f} % off")
    print()
    for row in found:
        reasons = [f"tokens: {row.unmet}"] if row.unmet else []
        reasons += [f"available memory: {row.unmet_whole}"] if row.unmet_whole else []
        if reasons:
            print(f"not checked, row {row.row}: {'; '.join(reasons)}")


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


if __name__ == "__main__":
    sys.exit(main())
