"""The simulated server's command line: vLLM's flags as its argparse accepts and refuses them, and our `--sim-*`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from autotune.node.defaults import PERFORMANCE_MODES, parse_length
from autotune.records import Config, Value
from autotune.simulator.server_faults import Faults, parse_faults

VERSION = "0.25.1+simulated"

KV_CACHE_DTYPES = (
    "auto", "bfloat16", "float16", "fp8", "fp8_ds_mla", "fp8_e4m3", "fp8_e5m2", "fp8_inc",
    "fp8_per_token_head", "int4_per_token_head", "int8_per_token_head", "nvfp4",
)  # fmt: skip
DTYPES = ("auto", "bfloat16", "float", "float16", "float32", "half")
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
LOAD_FORMATS = ("auto", "dummy", "pt", "safetensors")

# Parameters that `autotune.node.defaults.resolve` understands, as this parser stores them.
_RESOLVED = (
    "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "gpu_memory_utilization", "kv_cache_dtype", "dtype", "enable_prefix_caching",
    "enable_chunked_prefill", "enforce_eager", "block_size", "enable_expert_parallel", "api_server_count",
    "async_scheduling", "stream_interval", "max_cudagraph_capture_size", "performance_mode", "speculative_config",
    "quantization",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """What the command line asked for.

    Attributes:
        config: vLLM parameters that were given, for `resolve`.
        given: every vLLM option that differs from its default, in order: the log's "non-default args".
        start_s: wall seconds from the first line to ready.
        stop_s: wall seconds from TERM, or from the last request after it, to the end.
        drain_s: wall seconds that requests in flight may take after TERM; 0 ends them at once.
        speed: virtual seconds per wall second.
    """

    model: str
    served_name: str
    host: str | None
    port: int
    api_key: str | None
    seed: int
    kv_cache_memory_bytes: int | None
    load_format: str
    trust_remote_code: bool
    config: Config
    given: tuple[tuple[str, object], ...]
    node: str
    start_s: float
    stop_s: float
    drain_s: int
    speed: float
    faults: Faults


class _Parser(argparse.ArgumentParser):
    """argparse, with vLLM's `--help=all` and both spellings of a flag (`--max_num_seqs`, `--max-num-seqs`)."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # argparse's overloads
        words = [_dashed(word) for word in (sys.argv[1:] if args is None else args)]
        return super().parse_known_args(words, namespace)


def parse_args(argv: Sequence[str], env: Mapping[str, str]) -> ServerOptions:
    """Options from `argv` (without the program's name) and the environment (AUTOTUNE_SIM_FAULT).

    Raises:
        SystemExit: 0 after `--help` or `--version`, 2 for what vLLM's parser would refuse.
    """
    parser = build_parser()
    words = list(argv)
    if words[:1] == ["serve"]:
        words = words[1:]
    words = _expand_config_file(parser, words)
    args = parser.parse_args(words)
    model = args.model_tag or args.model
    if model is None:
        model = "Qwen/Qwen3-0.6B"  # vLLM's own default
    try:
        faults = parse_faults([*_split(env.get("AUTOTUNE_SIM_FAULT", "")), *args.sim_fault])
    except ValueError as error:
        parser.error(f"argument --sim-fault: {error}")
    defaults = vars(parser.parse_args([]))
    given = tuple((k, v) for k, v in vars(args).items() if v != defaults[k] and not k.startswith("sim_"))
    if args.model_tag is not None:
        given = (*given, ("model", args.model_tag))
    values: dict[str, Value] = {k.replace("_", "-"): vars(args)[k] for k in _RESOLVED if vars(args)[k] is not None}
    return ServerOptions(
        model=model,
        served_name=args.served_model_name[0] if args.served_model_name else model,
        host=args.host,
        port=args.port,
        api_key=args.api_key,
        seed=args.seed,
        kv_cache_memory_bytes=args.kv_cache_memory_bytes,
        load_format=args.load_format,
        trust_remote_code=args.trust_remote_code,
        config=Config.of(values),
        given=given,
        node=args.sim_node,
        start_s=args.sim_start_s,
        stop_s=args.sim_stop_s,
        drain_s=args.shutdown_timeout,
        speed=args.sim_speed,
        faults=faults,
    )


def build_parser() -> argparse.ArgumentParser:
    """The parser; every option has a help text, as `--help=all` of vLLM shows them."""
    parser = _Parser(
        prog="vllm serve",
        usage="vllm serve [model_tag] [options]",
        description="Simulated vLLM OpenAI-compatible API server: the HTTP surface of vLLM, no GPU.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("model_tag", nargs="?", help="The model to serve (optional if specified in config).")
    add = parser.add_argument
    add("-h", "--help", nargs="?", const="all", action=_Help, help="Show this help (`--help=all`) and exit.")
    add("-v", "--version", action="version", version=VERSION)
    add("--config", help="Read options from a YAML file; the command line wins.")
    _add_frontend(parser.add_argument_group("Frontend"))
    _add_model(parser.add_argument_group("ModelConfig"))
    _add_parallel(parser.add_argument_group("ParallelConfig"))
    _add_cache(parser.add_argument_group("CacheConfig"))
    _add_scheduler(parser.add_argument_group("SchedulerConfig"))
    _add_compilation(parser.add_argument_group("VllmConfig"))
    _add_simulator(parser.add_argument_group("Simulator"))
    return parser


class _Help(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        parser.print_help()
        raise SystemExit(0)


def _seconds(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{value} is less than 0")
    return value


def _add_frontend(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", help="Host name.")
    add("--port", type=int, default=8000, help="Port number.")
    add("--api-key", help="If provided, the server will require this key in the header.")
    add("--chat-template", help="The file path to the chat template.")
    add("--api-server-count", "-asc", type=int, help="How many API server processes to run.")
    add("--disable-log-requests", action=argparse.BooleanOptionalAction, help="Disable logging requests.")
    add("--disable-log-stats", action="store_true", help="Disable logging statistics.")
    add("--shutdown-timeout", type=_seconds, default=0, help="Seconds that requests in flight may take after TERM.")
    add("--disable-uvicorn-access-log", action="store_true", help="Disable uvicorn access log.")


def _add_model(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--model", help="Name or path of the Hugging Face model to use.")
    add("--dtype", choices=DTYPES, default=None, help="Data type for model weights and activations.")
    add("--quantization", "-q", help="Method used to quantize the weights.")
    add("--max-model-len", type=_length, help="Model context length (prompt and output); 8k and 8K are understood.")
    add("--enforce-eager", action=argparse.BooleanOptionalAction, help="Always use eager-mode PyTorch.")
    add("--served-model-name", nargs="+", help="The model name(s) used in the API.")
    add("--trust-remote-code", action=argparse.BooleanOptionalAction, default=False, help="Trust remote code.")
    add("--load-format", choices=LOAD_FORMATS, default="auto", help="The format of the model weights to load.")
    add("--seed", type=int, default=0, help="Random seed for reproducibility.")


def _add_parallel(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--tensor-parallel-size", "-tp", type=int, help="Number of tensor parallel groups.")
    add("--pipeline-parallel-size", "-pp", type=int, help="Number of pipeline parallel groups.")
    add("--data-parallel-size", "-dp", type=int, help="Number of data parallel groups.")
    add("--enable-expert-parallel", "-ep", action=argparse.BooleanOptionalAction, help="Use expert parallelism.")
    add("--numa-bind", action=argparse.BooleanOptionalAction, help="Bind workers to the CPUs next to their GPU.")
    add("--distributed-executor-backend", choices=("external_launcher", "mp", "ray", "uni"), help="Worker backend.")
    add("--all2all-backend", help="Backend of the exchange between expert-parallel ranks.")
    add("--disable-custom-all-reduce", action=argparse.BooleanOptionalAction, help="Use NCCL for all-reduce.")


def _add_cache(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--block-size", type=int, choices=BLOCK_SIZES, help="Size of a contiguous cache block in tokens.")
    add("--gpu-memory-utilization", type=float, help="Share of GPU memory to be used, from 0 to 1.")
    add("--kv-cache-memory-bytes", type=int, help="Size of KV cache per GPU in bytes; overrules the utilization.")
    add("--kv-cache-dtype", choices=KV_CACHE_DTYPES, help="Data type for kv cache storage.")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, help="Whether to enable prefix caching.")


def _add_scheduler(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-num-batched-tokens", type=int, help="Maximum number of tokens to be processed in a single iteration.")
    add("--max-num-seqs", type=int, help="Maximum number of sequences to be processed in a single iteration.")
    add("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, help="Allow prompts to be cut.")
    add("--async-scheduling", action=argparse.BooleanOptionalAction, help="Plan a step while another one runs.")
    add("--stream-interval", type=int, help="Tokens of one streamed chunk, after the first.")


def _add_compilation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--max-cudagraph-capture-size", type=int, help="Largest batch that is captured as a CUDA graph.")
    add("--performance-mode", choices=PERFORMANCE_MODES, help="What the defaults are to favour.")
    add("--speculative-config", "-sc", help="JSON object of the speculative decoding method.")


def _add_simulator(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--sim-node", default="1xH100-80GB", help="The node to stand for, e.g. 4xA100-80GB-NVLink.")
    add("--sim-fault", action="append", default=[], metavar="NAME[:ARG]", help="Misbehave; may be repeated.")
    add("--sim-start-s", type=float, default=0.0, help="Seconds that the start takes.")
    add("--sim-stop-s", type=float, default=0.0, help="Seconds that a stop takes.")
    add("--sim-speed", type=float, default=1.0, help="Simulated seconds per second.")


def _expand_config_file(parser: argparse.ArgumentParser, words: list[str]) -> list[str]:
    """Replace `--config FILE` by the file's options, placed first so that the command line wins."""
    path = None
    rest: list[str] = []
    for index, word in enumerate(words):
        if word == "--config":
            if index + 1 == len(words):
                parser.error("argument --config: expected one argument")
            path = words[index + 1]
        elif word.startswith("--config="):
            path = word.partition("=")[2]
        elif not (index and words[index - 1] == "--config"):
            rest.append(word)
    if path is None:
        return rest
    file = Path(path)
    if file.suffix not in {".yaml", ".yml"}:
        parser.error(f"Config file must be of a yaml/yml type. {file.suffix or file.name} supplied")
    try:
        loaded = yaml.safe_load(file.read_text())
    except (OSError, yaml.YAMLError) as error:
        parser.error(f"Unable to read the config file at {path}. {error}")
    return [*_words_of(loaded), *rest]


def _words_of(loaded: Any) -> list[str]:
    words: list[str] = []
    for key, value in (loaded or {}).items() if isinstance(loaded, dict | None) else ():
        if key == "model":
            words += [f"--model={value}"]
        elif isinstance(value, bool):
            words += [f"--{key}"] if value else []
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)]
        else:
            words += [f"--{key}", str(value)]
    return words


def _length(text: str) -> int:
    length = parse_length(text)
    if length is None:
        raise argparse.ArgumentTypeError(f"Invalid integer value: {text!r}")
    return length


def _dashed(word: str) -> str:
    """`--max_num_seqs=4` as `--max-num-seqs=4`; values stay as they are."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
