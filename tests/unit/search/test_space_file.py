"""What a search-space file may say: ranges, comparisons, checkpoints, alternatives."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from itertools import islice, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.errors import InvalidFile
from autotune.records import Config, Value
from autotune.search.parameter import Parameter
from autotune.search.samplers import Dial
from autotune.search.space import SearchSpace, parse_space
from autotune.search.space_file import space_content


def space(*parameters: str, fixed: str = "{}") -> SearchSpace:
    """A space of parameters written in YAML's flow style."""
    lines = "".join(f"  {one}\n" for one in parameters)
    return parse_space(f"name: s\nparameters:\n{lines}fixed: {fixed}\n", file="my.yaml")


def choices(entry: str) -> tuple[Value, ...]:
    return space(f"a: {entry}").parameters[0].choices


def refused(*parameters: str, fixed: str = "{}") -> InvalidFile:
    with pytest.raises(InvalidFile) as caught:
        space(*parameters, fixed=fixed)
    return caught.value


# Ranges


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ("{low: 1, high: 7, step: 2}", (1, 3, 5, 7)),
        ("{low: 0.80, high: 0.95, step: 0.05}", (0.8, 0.85, 0.9, 0.95)),
        ("{low: 0.88, high: 0.94, step: 0.02}", (0.88, 0.9, 0.92, 0.94)),
        ("{low: 0, high: 1, step: 0.5}", (0.0, 0.5, 1.0)),
        ("{low: -2, high: 2, step: 4}", (-2, 2)),
        # 32 times 2, 4, 8 ...
        ("{low: 32, high: 1024, log: true, points: 6}", (32, 64, 128, 256, 512, 1024)),
        # The square root of 10 apart.
        ("{low: 1, high: 100, log: true, points: 5}", (1, 3, 10, 32, 100)),
        ("{low: 1, high: 4, log: true, points: 12}", (1, 2, 3, 4)),
        ("{low: 0.01, high: 1.0, log: true, points: 3}", (0.01, 0.1, 1.0)),
        ("{low: 2, high: 3, log: true, points: 2}", (2, 3)),
    ],
)
def test_ranges_are_lists_of_values(entry: str, expected: tuple[Value, ...]) -> None:
    found = choices(f"{{range: {entry}}}")
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ("{low: 1, high: 8, step: 2}", "high", "such as 7"),
        ("{low: 1, high: 1, step: 1}", "high", "above low, which is 1"),
        ("{low: 2, high: 1, log: true, points: 3}", "high", "above low"),
        ("{low: 1, high: 2}", "step", "above 0"),
        ("{low: 1, high: 2, step: 0}", "step", "above 0"),
        ("{low: 1, high: 2, step: -1}", "step", "above 0"),
        ("{low: 1, high: 2, step: 1, points: 2}", "points", "a step instead"),
        ("{low: 1, high: 2, log: true}", "points", "from 2 to 1,000"),
        ("{low: 1, high: 2, log: true, points: 1}", "points", "from 2 to 1,000"),
        ("{low: 1, high: 2, log: true, points: 1000000000}", "points", "from 2 to 1,000"),
        ("{low: 1, high: 2, log: true, points: 3, step: 1}", "step", "points instead"),
        ("{low: 0, high: 2, log: true, points: 3}", "low", "above 0 with log"),
        ("{low: 1, high: 1000000, step: 1}", "step", "at most 1,000 values"),
        ("{low: 1, high: 2, step: 1.0e-300}", "step", "at most 1,000 values"),
        ("{low: one, high: 2, step: 1}", "low", "a number"),
        ("{low: true, high: 2, step: 1}", "low", "a number"),
        ("{high: 2, step: 1}", "low", "required"),
        ("{low: 1, high: 2, log: yep, points: 3}", "log", "true or false"),
        ("{low: 1, high: 2, log: true, points: 2.5}", "points", "a whole number"),
        ("{low: 1, high: 2, steps: 1}", "steps", "keys low, high, step, log, points"),
    ],
)
def test_bad_ranges(entry: str, key: str, says: str) -> None:
    error = refused(f"a: {{range: {entry}}}")
    assert error.key == f"parameters.a.range.{key}"
    assert says in str(error)


def test_a_range_and_choices_are_one_too_many() -> None:
    error = refused("a: {choices: [1], range: {low: 1, high: 2, step: 1}}")
    assert (error.key, error.allowed) == ("parameters.a.range", "either choices or a range")
    assert refused("a: {range: 7}").key == "parameters.a.range"
    assert "range" in refused("a: {why: none}").allowed


numbers = st.integers(1, 10**9) | st.floats(1e-6, 1e9)


@given(numbers, numbers, st.integers(2, 60))
def test_log_ranges_rise_from_end_to_end_in_even_ratios(low: float, high: float, points: int) -> None:
    if not low < high:
        return
    entry = {"range": {"low": low, "high": high, "log": True, "points": points}}
    found = space_content({"name": "s", "parameters": {"a": entry}}, "f").parameters[0].choices
    assert found[0] == low
    assert found[-1] == high
    values = [float(value) for value in found if value is not None]
    assert values == sorted(set(values))
    assert len(values) <= points
    ratio = (high / low) ** (1 / (points - 1))
    whole = isinstance(low, int) and isinstance(high, int)
    for value in values:
        step = round(math.log(value / low) / math.log(ratio)) if ratio > 1 + 1e-9 else None
        if step is not None and not whole:
            assert value == pytest.approx(low * ratio**step, rel=2e-5)


@given(st.integers(-1000, 1000), st.integers(1, 400), st.integers(1, 900))
def test_ranges_by_step_hold_what_counting_by_hand_gives(low: int, step: int, steps: int) -> None:
    whole = choices(f"{{range: {{low: {low}, high: {low + step * steps}, step: {step}}}}}")
    assert whole == tuple(range(low, low + step * steps + 1, step))
    cents = [f"{value / 100:.2f}" for value in (low, low + step * steps, step)]
    parts = choices(f"{{range: {{low: {cents[0]}, high: {cents[1]}, step: {cents[2]}}}}}")
    assert parts == tuple(float(f"{value / 100:.2f}") for value in range(low, low + step * steps + 1, step))


# Conditions

TP = "tp: {choices: [1, 2, 4, 8]}"


@pytest.mark.parametrize(
    ("wanted", "met"),
    [
        ('"> 1"', (2, 4, 8)),
        ('">1"', (2, 4, 8)),
        ('" >=  2 "', (2, 4, 8)),
        ('"< 4"', (1, 2)),
        ('"<= 4"', (1, 2, 4)),
        ('"!= 4"', (1, 2, 8)),
        ('"== 4"', (4,)),
        ('"> 1.5"', (2, 4, 8)),
        ('"< 1.0e+1"', (1, 2, 4, 8)),
        ("4", (4,)),
        ("[2, 8]", (2, 8)),
    ],
)
def test_conditions_become_values(wanted: str, met: tuple[Value, ...]) -> None:
    made = space(TP, f"a: {{choices: [x], when: {{tp: {wanted}}}}}")
    child = made.parameter("a")
    assert child is not None
    assert child.when == (("tp", met),)
    active = {config.get("tp") for config in made if config.get("a") == "x"}
    assert active == set(met)


def test_comparisons_with_other_values_than_numbers() -> None:
    kv = "kv: {choices: [auto, fp8, null, true, 3]}"
    for wanted, met in (
        ("'!= fp8'", ("auto", None, True, 3)),
        ("'== fp8'", ("fp8",)),
        ("'== \"fp8\"'", ("fp8",)),
        ("'!= null'", ("auto", "fp8", True, 3)),
        ("'== true'", (True,)),
        ("'> 1'", (3,)),
    ):
        child = space(kv, f"a: {{choices: [x], when: {{kv: {wanted}}}}}").parameter("a")
        assert child is not None
        assert child.when == (("kv", met),), wanted


def test_a_choice_that_reads_like_a_comparison_is_that_choice() -> None:
    child = space("sign: {choices: ['> 1', other]}", "a: {choices: [x], when: {sign: '> 1'}}").parameter("a")
    assert child is not None
    assert child.when == (("sign", ("> 1",)),)


def test_comparisons_with_fixed_values() -> None:
    assert all(config.get("a") for config in space("a: {choices: [x], when: {tp: '> 1'}}", fixed="{tp: 2}"))
    assert "can meet" in str(refused("a: {choices: [x], when: {tp: '> 2'}}", fixed="{tp: 2}"))


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ('"> 8"', "a condition that tp can meet; it has 1, 2, 4, 8"),
        ('"> x"', "> between numbers"),
        (f'"> {"9" * 5000}"', "a condition that tp can meet"),
        ('"> "', "> between numbers"),
        ('"> true"', "> between numbers"),
        ('"!= 3"', "a comparison with a value of tp"),
        ('"=> 1"', 'or a comparison such as "> 1"'),
        ("3", "values of tp: 1, 2, 4, 8"),
        ("['> 1']", "values of tp"),
        ("[]", "at least one of the values of tp"),
        ("{a: 1}", "plain values"),
    ],
)
def test_conditions_that_cannot_be_met(wanted: str, says: str) -> None:
    error = refused(TP, f"a: {{choices: [x], when: {{tp: {wanted}}}}}")
    assert error.key == "parameters.a.when.tp"
    assert says in str(error)


def test_numbers_are_compared_with_numbers_only() -> None:
    assert "> between numbers" in str(refused("kv: {choices: [auto, fp8]}", "a: {choices: [x], when: {kv: '> 1'}}"))


def test_conditions_that_contradict_each_other() -> None:
    """`c` needs b, which is there only with TP 1, and TP above 1."""
    error = refused(TP, "b: {choices: [x], when: {tp: 1}}", "c: {choices: [y], when: {b: x, tp: '> 1'}}")
    assert error.key == "parameters.c.when"
    assert "leave tp no value" in str(error)
    either = refused(TP, "b: {choices: [x], when: {tp: 1}}", "c: {choices: [y], when_any: [{tp: 2}, {b: x, tp: 4}]}")
    assert either.key == "parameters.c.when_any[1]"


def test_alternatives() -> None:
    made = space(
        TP, "dp: {choices: [1, 2]}", "ep: {choices: [true, false], when_any: [{tp: '> 1'}, {dp: '> 1'}]}", fixed="{}"
    )
    configs = list(made)
    assert {(config.get("tp"), config.get("dp")) for config in configs if "ep" not in config.as_dict()} == {(1, 1)}
    assert len(configs) == 1 + 7 * 2 == made.size
    assert all(made.contains(config) for config in configs)
    child = made.parameter("ep")
    assert child is not None
    assert child.parents == {"tp", "dp"}
    assert made.conditional
    plain = space(TP, "dp: {choices: [1, 2]}", "ep: {choices: [true, false]}")
    assert plain.space_hash != made.space_hash
    assert not plain.conditional


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ("{choices: [1], when_any: {tp: 1}}", "when_any", "a list of mappings"),
        ("{choices: [1], when_any: [7]}", "when_any[0]", ""),
        ("{choices: [1], when_any: [{nothing: 7}]}", "when_any[0].nothing", "another parameter"),
        ("{choices: [1], when_any: [{a: 1}]}", "when_any[0].a", "lead back"),
        ("{choices: [1], lossy: very}", "lossy", "true or false"),
        ("{choice: [1]}", "choice", "keys choices, range, why, when, when_any, lossy"),
    ],
)
def test_bad_parameters(entry: str, key: str, says: str) -> None:
    error = refused(TP, f"a: {entry}")
    assert error.key == f"parameters.a.{key}"
    assert says in str(error)


def test_alternatives_that_lead_back_are_found() -> None:
    error = refused("a: {choices: [1], when_any: [{b: 1}]}", "b: {choices: [1], when: {a: 1}}")
    assert "lead back" in str(error)


# Checkpoints and lossy parameters


def test_checkpoints() -> None:
    made = space("model: {choices: [null, org/m-AWQ, ./folder]}", "q: {choices: [x], when: {model: '!= null'}}")
    assert made.checkpoints == ("org/m-AWQ", "./folder")
    assert [config.get("model") for config in made] == [None, "org/m-AWQ", "./folder"]
    assert [config.get("q") for config in made] == [None, "x", "x"]
    assert space(TP).checkpoints == ()
    dial = Dial.of(made.parameters[0])
    assert not dial.ordered
    assert [dial.index(one) for one in made.parameters[0].choices] == [0, 1, 2]


@pytest.mark.parametrize("choice", ["7", "true", "''", "' '", "--port"])
def test_what_is_no_checkpoint(choice: str) -> None:
    error = refused(f"model: {{choices: [a/b, {choice}]}}")
    assert error.key == "parameters.model.choices[1]"
    assert "null for the study's own model" in str(error)


def test_the_model_is_not_fixed_by_a_space() -> None:
    assert "does not set itself" in str(refused(TP, fixed="{model: a/b}"))


def test_lossy_is_kept_and_decides_no_result() -> None:
    lossy = space("kv: {choices: [auto, fp8], lossy: true}")
    assert lossy.parameters[0].lossy
    assert lossy.space_hash == space("kv: {choices: [auto, fp8]}").space_hash
    assert not space(TP).parameters[0].lossy


def test_hashes_of_studies_that_are_stored_stay() -> None:
    """As computed before ranges and alternatives existed: a stored study would otherwise not be continued."""
    text = (
        "name: s\nparameters:\n  b: {choices: [1, 2], when: {a: [x]}}\n  a: {choices: [x, y]}\nfixed: {dtype: half}\n"
    )
    assert parse_space(text, file="f").space_hash == "497ed887a4cc"


# Size


@pytest.mark.no_cover
def test_large_spaces_are_counted_and_listed_quickly() -> None:
    ten = "{choices: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}"
    made = space(*(f"f{i}: {ten}" for i in range(5)), f"z: {ten[:-1]}, when: {{f0: '> 4'}}}}")
    begun = time.process_time()
    # Half of 100,000 have ten more choices each.
    assert made.size == 50_000 + 50_000 * 10
    assert time.process_time() - begun < 0.2
    begun = time.process_time()
    # The first 50,000 of the list have no z.
    assert sum(1 for _ in islice(made, 100_000)) == 100_000
    assert time.process_time() - begun < 5


@pytest.mark.no_cover
def test_spaces_beyond_counting_are_refused_at_once() -> None:
    pairs = [f"a{i}: {{choices: [1, 2]}}" for i in range(90)]
    children = [f"b{i}: {{choices: [1, 2], when: {{a{i}: 1}}}}" for i in range(90)]
    many = ", ".join(map(str, range(1000)))
    begun = time.process_time()
    assert "more than 1,000,000 combinations" in str(refused(*pairs, *children))
    assert "1,000,000,000,000 combinations" in str(refused(*(f"a{i}: {{choices: [{many}]}}" for i in range(4))))
    assert "more than 1,000,000 combinations" in str(refused(*(f"a{i}: {{choices: [{many}]}}" for i in range(20))))
    assert time.process_time() - begun < 10


def test_how_many_parameters_and_choices_a_file_may_have() -> None:
    assert "at most 200" in str(refused(*(f"a{i}: {{choices: [1]}}" for i in range(201))))
    many = ", ".join(map(str, range(1001)))
    assert "at most 1,000" in str(refused(f"a: {{choices: [{many}]}}"))
    chain = ["a0: {choices: [1]}", *(f"a{i}: {{choices: [1], when: {{a{i - 1}: 1}}}}" for i in range(1, 200))]
    assert space(*reversed(chain)).size == 1


def test_equal_keys_are_told_apart_when_counting() -> None:
    made = space("a: {choices: [1, true]}", "b: {choices: [x, y, z], when: {a: true}}")
    assert made.size == 1 + 3 == sum(1 for _ in made)


@pytest.mark.no_cover
@settings(max_examples=150)
@given(st.data())
def test_counting_and_listing_against_a_slow_oracle(data: st.DataObject) -> None:
    """The oracle walks the whole product and drops what is inactive."""
    parameters: list[Parameter] = []
    for index in range(data.draw(st.integers(1, 5))):
        values: tuple[Value, ...] = (1, 2, 3)[: data.draw(st.integers(1, 3))]

        def condition() -> tuple[tuple[str, tuple[Value, ...]], ...]:
            parent = data.draw(st.sampled_from(parameters))
            size = data.draw(st.integers(1, len(parent.choices)))
            return ((parent.name, parent.choices[:size]),)

        when = condition() if index and data.draw(st.booleans()) else ()
        either = tuple(condition() for _ in range(data.draw(st.integers(0, 2)))) if index else ()
        parameters.append(Parameter(name=f"p{index}", choices=values, when=when, when_any=either))
    made = SearchSpace(name="s", parameters=tuple(parameters))
    expected = dict.fromkeys(
        made.canonical({one.name: value for one, value in zip(parameters, values, strict=True)})
        for values in product(*(one.choices for one in parameters))
    )
    assert list(made) == list(expected)
    assert made.size == len(expected)


@pytest.mark.no_cover
@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "parameters", "choices", "range", "low", "high", "step", "when", "when_any", "a"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_whatever_a_document_holds_the_error_is_ours(content: object) -> None:
    for document in (content, {"name": "s", "parameters": {"a": content, "b": {"choices": [1, 2]}}}):
        with suppress(InvalidFile):
            space_content(document, "f")


def test_configs_are_ordered_by_name_whatever_the_order_of_parameters() -> None:
    made = space("z: {choices: [1, 2]}", "a: {choices: [3], when: {z: 2}}", "m: {choices: [4]}")
    assert [config.params for config in made] == [
        (("m", 4), ("z", 1)),
        (("a", 3), ("m", 4), ("z", 2)),
    ]
    assert all(Config.of(config.as_dict()) == config for config in made)
