"""Search spaces and their files."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import ExitCode, InvalidFile, UnknownName
from autotune.records import Config
from autotune.search.space import Parameter, SearchSpace, load_space, parse_space, shipped_spaces

CONDITIONAL = """
name: conditional
parameters:
  custom: {choices: [x, y], why: only with TP, when: {tensor-parallel-size: [2, 4]}}
  tensor-parallel-size: {choices: [1, 2, 4]}
  max-num-seqs: {choices: [64, null]}
fixed: {dtype: bfloat16}
"""


@pytest.mark.parametrize("name", ["default", "scheduler", "cpu-tiny"])
def test_shipped_spaces(name: str) -> None:
    space = load_space(name)
    assert space.name == name
    assert name in shipped_spaces()
    assert all(parameter.why for parameter in space.parameters)
    assert space.size == sum(1 for _ in space)


def test_the_default_space_is_what_it_says() -> None:
    # tp 4, pp 3, dp 4, utilisation 4, seqs 6, batched 5, kv 2, prefix 2, eager 1.
    assert load_space("default").size == 4 * 3 * 4 * 4 * 6 * 5 * 2 * 2
    assert not any("parallel" in p.name for p in load_space("cpu-tiny").parameters)


def test_iteration_drops_inactive_parameters_and_is_ordered() -> None:
    space = parse_space(CONDITIONAL, file="f")
    configs = [config.as_dict() for config in space]
    # TP=1: 2 configs without `custom`; TP=2 and 4: 2 x 2 each.
    assert len(configs) == 10 == space.size
    assert configs[0] == {"tensor-parallel-size": 1, "max-num-seqs": 64}
    assert configs[2] == {"tensor-parallel-size": 2, "custom": "x", "max-num-seqs": 64}
    assert len({config.hash for config in space}) == 10
    assert list(space) == list(space)
    assert all(space.contains(config) for config in space)
    assert space.fixed == (("dtype", "bfloat16"),)


def test_canonical() -> None:
    space = parse_space(CONDITIONAL, file="f")
    full = {"tensor-parallel-size": 1, "custom": "y", "max-num-seqs": 64}
    assert space.canonical(full) == Config.of({"tensor-parallel-size": 1, "max-num-seqs": 64})
    assert space.canonical({**full, "tensor-parallel-size": 2}).get("custom") == "y"


@pytest.mark.parametrize(
    "values",
    [
        {"tensor-parallel-size": 1, "custom": "x", "max-num-seqs": 64},
        {"tensor-parallel-size": 2, "max-num-seqs": 64},
        {"tensor-parallel-size": 3, "max-num-seqs": 64},
        {"tensor-parallel-size": True, "max-num-seqs": 64},
        {"tensor-parallel-size": 1, "max-num-seqs": 64, "other": 1},
        {},
    ],
)
def test_does_not_contain(values: dict[str, int | str]) -> None:
    assert not parse_space(CONDITIONAL, file="f").contains(Config.of(values))


def test_the_hash_is_of_what_decides_results() -> None:
    space = parse_space(CONDITIONAL, file="f")
    told = replace(space, description="x", parameters=tuple(replace(p, why="y") for p in reversed(space.parameters)))
    assert told.space_hash == space.space_hash
    assert replace(space, fixed=()).space_hash != space.space_hash
    fewer = (replace(space.parameters[0], choices=space.parameters[0].choices[:1]), *space.parameters[1:])
    assert replace(space, parameters=fewer).space_hash != space.space_hash


def test_conditions_on_fixed_values() -> None:
    text = CONDITIONAL.replace("tensor-parallel-size: [2, 4]", "dtype: bfloat16")
    assert all(config.get("custom") for config in parse_space(text, file="f"))


GOOD = "name: s\nparameters:\n  max-num-seqs: {choices: [1, 2]}\n"


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("", "", "mapping"),
        ("- a\n", "", "mapping"),
        ("name: s\n", "parameters", "required"),
        (GOOD + "color: red\n", "color", "keys name, description, parameters, fixed"),
        ("name: s\nparameters: {}\n", "parameters", "at least one"),
        ("name: s\nparameters:\n  max-num-seqs: {choices: []}\n", "parameters.max-num-seqs.choices", "at least one"),
        ("name: s\nparameters:\n  max-num-seqs: {}\n", "parameters.max-num-seqs.choices", "required"),
        ("name: s\nparameters:\n  a: {choices: 5}\n", "parameters.a.choices", "a list"),
        ("name: s\nparameters:\n  a: {choices: [[1]]}\n", "parameters.a.choices[0]", "plain values"),
        ("name: s\nparameters:\n  a: {choices: [1, 2, 1.0]}\n", "parameters.a.choices[2]", "each choice once"),
        ("name: s\nparameters:\n  a: {choices: [.nan]}\n", "line 3, column 17", "finite"),
        ("name: s\nparameters:\n  a: {choices: [1], rang: 3}\n", "parameters.a.rang", "keys choices, range, why, when"),
        ("name: s\nparameters:\n  --a: {choices: [1]}\n", "parameters.--a", "without dashes"),
        ("name: s\nparameters:\n  port: {choices: [1]}\n", "parameters.port", "does not set itself"),
        (GOOD + "fixed: {api-key: x}\n", "fixed.api-key", "no secrets"),
        (GOOD + "fixed: {max-num-seqs: 1}\n", "fixed.max-num-seqs", "not searched"),
        (GOOD + "fixed: {a: [1]}\n", "fixed.a", "plain values"),
        ("name: 7\nparameters:\n  a: {choices: [1]}\n", "name", "a text"),
        ("name: s\nparameters:\n  a: {choices: [1], when: {b: 1}}\n", "parameters.a.when.b", "another parameter"),
        ("name: s\nparameters:\n  a: {choices: [1], when: {a: 1}}\n", "parameters.a.when.a", "lead back"),
        (
            "name: s\nparameters:\n  a: {choices: [1], when: {b: 1}}\n  b: {choices: [1], when: {a: 1}}\n",
            "parameters.b.when.a",
            "lead back",
        ),
        (
            "name: s\nparameters:\n  a: {choices: [1], when: {b: 3}}\n  b: {choices: [1, true]}\n",
            "parameters.a.when.b",
            "1, true",
        ),
        (GOOD + "  max-num-seqs: {choices: [3]}\n", "line 4, column 3", "YAML"),
        ("name: s\nparameters: {a: [\n", "line 3", "YAML"),
        ("name: \x00\n", "", "YAML"),
    ],
)
def test_bad_files_name_file_key_value_and_allowed(text: str, key: str, says: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_space(text, file="my.yaml")
    error = caught.value
    assert error.file == "my.yaml"
    assert error.key.startswith(key)
    assert says in str(error)
    assert error.exit_code is ExitCode.INVALID_FILE


def test_unknown_space(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean: default") as caught:
        load_space("defualt")
    assert caught.value.exit_code is ExitCode.UNKNOWN_SPACE
    with pytest.raises(UnknownName):
        load_space(str(tmp_path / "none.yaml"))


def test_a_space_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD)
    assert load_space(str(path)).size == 2
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidFile, match="text in UTF-8"):
        load_space(str(path))


scalars = st.integers(0, 3) | st.sampled_from(["a", "b", 0.5])


@given(st.lists(st.lists(scalars, min_size=1, max_size=3, unique=True), min_size=1, max_size=4), st.data())
def test_iteration_against_a_slow_oracle(choices: list[list[int | str | float]], data: st.DataObject) -> None:
    """The oracle walks the whole product, drops inactive values and removes duplicates."""
    parameters: list[Parameter] = []
    for index, values in enumerate(choices):
        when = ()
        if index and data.draw(st.booleans()):
            parent = data.draw(st.sampled_from(parameters))
            when = ((parent.name, (data.draw(st.sampled_from(parent.choices)),)),)
        parameters.append(Parameter(name=f"p{index}", choices=tuple(values), when=when))
    space = SearchSpace(name="s", parameters=tuple(parameters))
    expected = dict.fromkeys(
        space.canonical({p.name: v for p, v in zip(parameters, values, strict=True)})
        for values in product(*(p.choices for p in parameters))
    )
    assert list(space) == list(expected)
    assert space.size == len(expected)


def test_a_space_too_large_to_be_judged_is_refused() -> None:
    values = ", ".join(str(value) for value in range(101))
    text = "name: s\nparameters:\n" + "".join(f"  flag-{i}: {{choices: [{values}]}}\n" for i in range(3))
    with pytest.raises(InvalidFile, match="1,030,301 combinations"):
        parse_space(text, file="f")
