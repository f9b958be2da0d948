"""`autotune capacity`: does it fit, how many KV tokens, and how many users at once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.capacity_text import Answer, document, show
from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.capacity import Capacity, Demand
    from autotune.node.defaults import ResolvedSettings, Version
    from autotune.records import Gpu, ModelShape, Node

CALIBRATED = "0.25.1"
MOST_TOKENS = 10**12
MOST_GPUS = 1024
"""Of one size; far above any node, and what a pipeline of so many stages costs to compute stays small."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity")(capacity)


def capacity(
    model: Annotated[str | None, typer.Option(help="Folder with config.json, hub id, or name; see `plan`.")] = None,
    node: Annotated[str | None, typer.Option(help="Node, e.g. 4xL40S-48GB-PCIe. Default: this machine's GPUs.")] = None,
    tp: Annotated[
        int | None,
        typer.Option(min=1, max=MOST_GPUS, help="tensor-parallel-size. Without --tp, --pp and --dp: every layout."),
    ] = None,
    pp: Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, help="pipeline-parallel-size.")] = None,
    dp: Annotated[int | None, typer.Option(min=1, max=MOST_GPUS, help="data-parallel-size.")] = None,
    ep: Annotated[bool, typer.Option("--ep", help="enable-expert-parallel: deal the experts out whole.")] = False,
    gpu_memory_utilization: Annotated[float | None, typer.Option(help="Share of the GPU's memory.")] = None,
    kv_cache_dtype: Annotated[str | None, typer.Option(help="auto, bfloat16, fp8, ...")] = None,
    max_model_len: Annotated[int | None, typer.Option(min=1, help="Longest request. Default: the model's.")] = None,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Default: vLLM's for the GPU.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Default: vLLM's for the GPU.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens per KV block; 16 by default.")] = None,
    vllm_version: Annotated[str, typer.Option(help="vLLM whose rules hold.")] = CALIBRATED,
    available_kv_gib: Annotated[
        float | None, typer.Option(help='From a log\'s "Available KV cache memory" (per GPU) instead of --node.')
    ] = None,
    kv_tokens: Annotated[
        int | None, typer.Option(min=0, help='From a log\'s "GPU KV cache size" instead of --model and --node.')
    ] = None,
    users: Annotated[int | None, typer.Option(min=1, help="Users at once; with --tokens-per-request.")] = None,
    tokens_per_request: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one request, prompt and output together.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what fits: weights, KV tokens and requests at once per layout; and whether so many users are served."""
    asked = Asked(
        model=model,
        node=node,
        sizes=(tp, pp, dp),
        available_kv_gib=available_kv_gib,
        kv_tokens=kv_tokens,
        users=users,
        tokens_per_request=tokens_per_request,
        flags={
            "tensor-parallel-size": tp,
            "pipeline-parallel-size": pp,
            "data-parallel-size": dp,
            "enable-expert-parallel": ep or None,
            "gpu-memory-utilization": gpu_memory_utilization,
            "kv-cache-dtype": kv_cache_dtype,
            "max-model-len": max_model_len,
            "max-num-batched-tokens": max_num_batched_tokens,
            "max-num-seqs": max_num_seqs,
            "block-size": block_size,
        },
        vllm_version=vllm_version,
    )
    found = answer(asked)
    typer.echo(json.dumps(document(found), indent=2)) if as_json else show(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The command line; None for what was not given. `flags` are named as vLLM names them."""

    model: str | None
    node: str | None
    sizes: tuple[int | None, int | None, int | None]
    available_kv_gib: float | None
    kv_tokens: int | None
    users: int | None
    tokens_per_request: int | None
    flags: dict[str, Any]
    vllm_version: str


def answer(asked: Asked) -> Answer:
    """The capacity that was asked for.

    Raises:
        InvalidOption: options that contradict each other, or a value that cannot be used.
        UnknownName, InvalidFile: the model or the node.
    """
    from autotune.capacity import of_memory, of_tokens, remedies

    _refuse_conflicts(asked)
    for name, value in (*asked.flags.items(), ("kv-tokens", asked.kv_tokens), ("users", asked.users)):
        if isinstance(value, int):
            _bounded(f"--{name}", value)
    demand = _demand(asked)
    if asked.kv_tokens is not None:
        one = of_tokens(asked.kv_tokens, demand, asked.flags["max-model-len"])
        known = remedies(one, demand, again=None) if demand else ()
        return Answer(
            capacities=(one,), model=asked.model, node=None, version=asked.vllm_version, demand=demand, remedies=known
        )
    if asked.available_kv_gib is None:
        return _from_node(asked, demand)
    shape, version = _shape(asked), _version(asked)
    settings = _settings(asked, shape, None)
    available = _gib(asked.available_kv_gib)

    def again(other: ResolvedSettings) -> Capacity:
        return of_memory(shape, other, available, demand, version)

    one = again(settings)
    known = remedies(one, demand, again=again, shape=shape) if demand else ()
    return Answer(
        capacities=(one,), model=shape.name, node=None, version=asked.vllm_version, demand=demand, remedies=known
    )


def _from_node(asked: Asked, demand: Demand | None) -> Answer:
    from autotune.capacity import largest, layouts, of_gpu, remedies
    from autotune.errors import InvalidOption

    shape, version, node = _shape(asked), _version(asked), _node(asked.node)
    gpu: Gpu = min(node.gpus, key=lambda one: one.memory_bytes)
    settings = _settings(asked, shape, node)
    if settings.gpus > node.gpu_count:
        raise InvalidOption("--tp x --pp x --dp", settings.gpus, f"at most the {node.gpu_count} GPUs of {node.name}")

    def again(other: ResolvedSettings) -> Capacity:
        return of_gpu(shape, gpu, other, demand, version)

    if all(size is None for size in asked.sizes) and node.gpu_count > 1:
        found = tuple(again(one) for one in layouts(node, settings))
    else:
        found = (again(settings),)
    best = largest(found)
    known = remedies(best, demand, again=again, shape=shape, gpus=node.gpu_count) if demand else ()
    return Answer(
        capacities=found, model=shape.name, node=node.name, version=asked.vllm_version, demand=demand, remedies=known
    )


def _refuse_conflicts(asked: Asked) -> None:
    from autotune.errors import InvalidOption

    given = [
        name
        for name, value in (
            ("--kv-tokens", asked.kv_tokens),
            ("--available-kv-gib", asked.available_kv_gib),
            ("--node", asked.node),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise InvalidOption(given[0], f"given with {given[1]}", "one of --node, --available-kv-gib and --kv-tokens")
    if (asked.users is None) != (asked.tokens_per_request is None):
        lacking = "--users" if asked.users is None else "--tokens-per-request"
        raise InvalidOption(lacking, "not given", "--users and --tokens-per-request together")
    if asked.kv_tokens is not None:
        kept = {"max-model-len"}
        useless = [name for name, value in asked.flags.items() if value is not None and name not in kept]
        if useless:
            raise InvalidOption(f"--{useless[0]}", "given with --kv-tokens", "no flag that the tokens already reflect")
    elif asked.model is None:
        raise InvalidOption("--model", "not given", "a model, or --kv-tokens, which needs none")


def _demand(asked: Asked) -> Demand | None:
    from autotune.capacity import Demand

    if asked.users is None or asked.tokens_per_request is None:
        return None
    return Demand(users=asked.users, tokens_per_request=_bounded("--tokens-per-request", asked.tokens_per_request))


def _bounded(option: str, value: int) -> int:
    from autotune.errors import InvalidOption

    if value > MOST_TOKENS:
        raise InvalidOption(option, value, f"at most {MOST_TOKENS:,}")
    return value


def _gib(value: float) -> int:
    from autotune.errors import InvalidOption
    from autotune.units import GIB

    if not -1e6 < value < 1e6:  # NaN fails the comparison too
        raise InvalidOption("--available-kv-gib", value, "GiB per GPU")
    return round(value * GIB)


def _shape(asked: Asked) -> ModelShape:
    from autotune.node.model_shape import load_shape

    assert asked.model is not None  # refused before
    return load_shape(asked.model)


def _version(asked: Asked) -> Version:
    from autotune.errors import InvalidOption
    from autotune.node.defaults import NEWEST, parse_version

    found = parse_version(asked.vllm_version)
    if found == NEWEST:
        raise InvalidOption("--vllm-version", asked.vllm_version, f"a release such as {CALIBRATED}")
    return found


def _settings(asked: Asked, shape: ModelShape, node: Node | None) -> ResolvedSettings:
    """Settings of the layout asked for, with vLLM's defaults for the GPU, or for a data-centre one without a node."""
    from autotune.errors import InvalidOption
    from autotune.node.defaults import resolve
    from autotune.node.gpus import parse_node_name
    from autotune.node.kv_capacity import kv_value_bytes
    from autotune.records import Config

    settings = resolve(Config.of(asked.flags), node or parse_node_name("H100-80GB"), shape, asked.vllm_version)
    if asked.tokens_per_request is not None and asked.tokens_per_request > settings.max_model_len:
        raise InvalidOption(
            "--tokens-per-request", asked.tokens_per_request, f"at most max-model-len ({settings.max_model_len})"
        )
    if settings.expert_parallel and shape.experts is None:
        raise InvalidOption("--ep", "on", f"off: {shape.name} is no mixture of experts")
    try:
        kv_value_bytes(shape, settings)
    except ValueError as error:
        raise InvalidOption("--kv-cache-dtype", settings.kv_cache_dtype, "auto, bfloat16, float16, fp8") from error
    return settings


def _node(name: str | None) -> Node:
    """The named node, or this machine's GPUs.

    Raises:
        InvalidOption: no name, and no GPU here.
    """
    from autotune.cli.surroundings import surroundings
    from autotune.errors import InvalidOption
    from autotune.node.gpus import parse_node_name
    from autotune.node.probe import detect_node

    if name is not None:
        return parse_node_name(name)
    here = surroundings()
    if here.probe is not None:
        found = detect_node(here.probe, here.environ, None, shm_bytes=here.shm_bytes, has_kfd=here.has_kfd)
        if found is not None and found.gpus:
            return found
    raise InvalidOption("--node", "not given", "a node such as 4xL40S-48GB-PCIe; no GPU is visible on this machine")
