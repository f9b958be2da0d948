"""A rendered `--config` file means to vLLM's own parser what the command line means that was measured."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.promote import Deployment, Provenance, Target, render, serve_argv
from autotune.promote.parameters import split_parameters
from autotune.promote.targets import vllm_config
from autotune.records import Config, Value
from autotune.search.space import load_space, shipped_spaces

pytestmark = pytest.mark.real

MODEL = "org/model"
JSON_FLAGS: dict[str, Value] = {
    "compilation-config": '{"mode": 3, "cudagraph_capture_sizes": [1, 2, 4]}',
    "override-generation-config": '{"temperature": 0.5}',
}
MORE: dict[str, tuple[Value, ...]] = {
    **{name: (text,) for name, text in JSON_FLAGS.items()},
    "disable-log-stats": (True, False),
    "enable-chunked-prefill": (True, False),
    "max-model-len": (8192, 32768),
    "quantization": ("fp8",),
    "served-model-name": ("no", "1e3", "it's: a # name"),
    "seed": (0, -1),
}
"""Beside what the spaces hold: JSON, a switch without `--no-` form, text that YAML reads as something else, a dash."""

EXTRA: tuple[tuple[str, ...], ...] = (
    ("--trust-remote-code",),
    ("--chat_template", "/t/chat.jinja", "--max-logprobs=5"),
    ("--no-enable-prefix-caching",),
    ("--allowed-origins", '["a", "b"]'),
    ("--middleware", "a", "--middleware", "b"),
    ("-O3",),
)

# `vllm serve` parses with a parser of subcommands around its own; importing vLLM takes many seconds, so once for all.
PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import cmd_init
from vllm.utils.argparse_utils import FlexibleArgumentParser
top = FlexibleArgumentParser(description="vLLM CLI")
below = top.add_subparsers(required=False, dest="subparser")
for command in cmd_init():
    command.subparser_init(below)
found = []
for argv in json.load(sys.stdin):
    found.append({name: repr(value) for name, value in vars(top.parse_args(argv)).items()})
print("RESULT" + json.dumps(found))
"""


def deployment(config: Config, extra: tuple[str, ...] = ()) -> Deployment:
    flags, environment, secrets = split_parameters(None, config)
    return Deployment(
        name="prod",
        model=MODEL,
        flags=flags,
        environment=environment,
        secret_names=secrets,
        extra_args=extra,
        command=("vllm", "serve"),
        gpus=1,
        gpu_indices=(),
        vllm_version="0.32.0",
        startup_s=60.0,
        drain_s=30,
        max_model_len=None,
        port=8000,
        bind="127.0.0.1",
        image=None,
        provenance=Provenance(
            autotune_version="0",
            study="s",
            workload="chat",
            trial=1,
            config_hash=config.hash,
            node="1xH100-80GB",
            created_at=datetime(2026, 1, 1, tzinfo=UTC),
            simulated=False,
            version_measured=True,
            runs=1,
            output_tok_s=None,
            output_tok_s_per_gpu=None,
            ttft_p95_s=None,
            resolved=None,
            caveats=(),
        ),
    )


def every_value() -> dict[str, dict[str, Value]]:
    """Each flag of the shipped spaces with each of its values, by a name for messages."""
    values: dict[str, list[Value]] = {name: list(more) for name, more in MORE.items()}
    for space in map(load_space, shipped_spaces()):
        for parameter in space.parameters:
            if not parameter.name.startswith("env:") and parameter.name != "model":
                values.setdefault(parameter.name, []).extend(parameter.choices)
        for name, value in space.fixed:
            values.setdefault(name, []).append(value)
    return {f"{name}={value}": {name: value} for name, found in values.items() for value in dict.fromkeys(found)}


def cases() -> Iterator[tuple[str, Deployment]]:
    for label, values in every_value().items():
        yield label, deployment(Config.of(values))
    for extra in EXTRA:
        yield " ".join(extra), deployment(Config.of({"enable-prefix-caching": True}), extra)


@pytest.fixture(scope="module")
def parsed(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, Any]]:
    """By case: what the parser makes of the command line, and of the file."""
    folder = tmp_path_factory.mktemp("configs")
    made = dict(cases())
    argvs: list[list[str]] = []
    for index, one in enumerate(made.values()):
        (file,) = render(one, [Target.VLLM_CONFIG])
        path = folder / f"{index}.yaml"
        path.write_text(file.text, encoding="utf-8")
        argvs += [list(serve_argv(one)[1:]), list(vllm_config.argv(one, str(path))[1:])]
    done = subprocess.run(
        [vllm_python, "-c", PARSE], input=json.dumps(argvs), capture_output=True, text=True, timeout=1500, check=False
    )
    result = next((line[6:] for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    assert result is not None, done.stderr[-3000:]
    found = json.loads(result)
    return {name: (found[2 * at], found[2 * at + 1]) for at, name in enumerate(made)}


def test_the_file_means_what_the_command_line_means(parsed: dict[str, tuple[Any, Any]]) -> None:
    assert len(parsed) > 80
    for case, (line, file) in parsed.items():
        assert {**file, "config": None} == {**line, "config": None}, case


def test_the_parsed_arguments_equal_the_config(parsed: dict[str, tuple[Any, Any]]) -> None:
    checked = 0
    for case, values in every_value().items():
        ((name, value),) = values.items()
        if value is None:
            continue
        said = parsed[case][1][name.replace("-", "_")]
        wanted = json.loads(value) if isinstance(value, str) and value.startswith("{") else value
        if isinstance(wanted, dict):
            # Parsed into one of vLLM's records, or kept as a mapping; the values are in it either way.
            assert all(str(part) in said for part in wanted.values()), case
        elif name == "served-model-name":
            assert said == repr([wanted]), case
        else:
            assert said == repr(wanted), case
        checked += 1
    assert checked > 70


def test_what_can_stand_in_the_file_does(tmp_path: Path) -> None:
    made = deployment(Config.of({"enable-prefix-caching": True}), ("--no-enable-prefix-caching", "--max-logprobs=5"))
    (file,) = render(made, [Target.VLLM_CONFIG])
    document = yaml.safe_load(file.text)
    assert document["no-enable-prefix-caching"] is True
    assert "enable-prefix-caching" not in document
    assert document["max-logprobs"] == "5"
    assert vllm_config.argv(made, "f.yaml") == ("vllm", "serve", MODEL, "--config", "f.yaml")
