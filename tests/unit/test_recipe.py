"""Study files and the command line's words: what is accepted, and what an error names."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import AutotuneError, InvalidFile, InvalidOption, UnknownName
from autotune.recipe import (
    EngineChoice,
    LoadChoice,
    compose,
    default_name,
    find_study_file,
    parse_gpu_hours,
    parse_gpus,
    parse_load,
    parse_share,
    parse_trials,
    read_study_file,
)
from autotune.records import Config


def written(folder: Path, text: str) -> Path:
    path = folder / "study.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "share"), [("99%", 0.99), ("0.95", 0.95), ("99.5 %", 0.995), ("off", 0.0), (" 80% ", 0.8)]
)
def test_shares_with_and_without_their_sign(text: str, share: float) -> None:
    assert parse_share(text, "--abandon", least=0.8, most=0.9999, off=True) == pytest.approx(share)


@pytest.mark.parametrize("text", ["50%", "1", "100%", "", "x", "-1%", "99%%", "nan", "1e-1", "offf"])
def test_other_shares_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"off, or a share from 80% to 99\.99%"):
        parse_share(text, "--abandon", least=0.8, most=0.9999, off=True)


def test_gpu_hours_are_seconds_inside(tmp_path: Path) -> None:
    assert parse_gpu_hours("1.5") == 5400.0
    for text in ("0", "-1", "1h", "", "1e9", "10000000"):
        with pytest.raises(InvalidOption, match="a number above 0"):
            parse_gpu_hours(text)
    (tmp_path / "s.yaml").write_text("max_gpu_hours: 2\nabandon: 0\nnotify_command: [mail, me]\nmin_gain: 0.01\n")
    values = read_study_file(tmp_path / "s.yaml")
    assert values == {"max_gpu_s": 7200.0, "abandon": 0, "notify_command": ("mail", "me"), "min_gain": 0.01}
    (tmp_path / "s.yaml").write_text("abandon: false\n")  # not 0, whatever Python says
    with pytest.raises(InvalidFile, match="abandon"):
        read_study_file(tmp_path / "s.yaml")
    (tmp_path / "s.yaml").write_text("abandon: 0.5\n")
    with pytest.raises(InvalidFile, match="abandon"):
        read_study_file(tmp_path / "s.yaml")


def test_a_gain_is_expected_by_one_sampler_alone() -> None:
    assert compose({}, {"model": "m", "min_gain": 0.01}).min_gain == 0.01
    with pytest.raises(InvalidOption, match="the sampler prior alone"):
        compose({"sampler": "tpe"}, {"model": "m", "min_gain": 0.01})


def test_a_whole_file(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
        model: meta-llama/Llama-3.1-8B
        workload: chat
        engine: process
        gpus: [0, 1]
        trials: 12
        load: {concurrency: 64, rate_rps: 12}
        extra_args: [--trust-remote-code]
        starting_points:
          - {max-num-seqs: 64, enable-prefix-caching: true}
        """,
    )
    recipe = compose(read_study_file(path), {})
    assert recipe.engine is EngineChoice.PROCESS
    assert recipe.gpus == (0, 1)
    assert recipe.load == LoadChoice(concurrency=64, rate_rps=12.0)
    assert recipe.extra_args == ("--trust-remote-code",)
    assert recipe.starting_points == (Config.of({"enable-prefix-caching": True, "max-num-seqs": 64}),)


def test_the_command_line_wins_and_none_is_not_said(tmp_path: Path) -> None:
    path = written(tmp_path, "model: a/b\ntrials: 12\nload: {concurrency: 64}\n")
    recipe = compose(read_study_file(path), {"trials": 5, "seed": None, "load": LoadChoice(rate_rps=3.0)})
    assert recipe.trials == 5
    assert recipe.seed == 0
    assert recipe.load == LoadChoice(concurrency=64, rate_rps=3.0)


@pytest.mark.parametrize(
    ("text", "key", "shown"),
    [
        ("modell: x", "modell", "modell"),
        ("trials: many", "trials", "many"),
        ("trials: true", "trials", "True"),
        ("trials: 0", "trials", "0"),
        ("load: {speed: 3}", "load.speed", "speed"),
        ("load: {rate_rps: -1}", "load.rate_rps", "-1"),
        ("load: {rate_rps: true}", "load.rate_rps", "True"),
        ("start_deadline_s: true", "start_deadline_s", "True"),
        ("level_deadline_s: '60'", "level_deadline_s", "60"),
        ("gpus: [0, -1]", "gpus.1", "-1"),
        ("engine: docker", "engine", "docker"),
        ("starting_points: [3]", "starting_points.0", "3"),
        ("- a\n- b", "", "a"),
        ("a: [", "line", "expected"),
        ("model: !!python/object/apply:os.system [ls]", "line", "constructor"),
    ],
)
def test_errors_name_file_key_and_value(tmp_path: Path, text: str, key: str, shown: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InvalidFile) as caught:
        read_study_file(path)
    assert str(path) in caught.value.message
    assert key in caught.value.key
    assert shown in caught.value.message


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "binary.yaml"):
        with pytest.raises(InvalidFile):
            read_study_file(path)


def test_a_model_is_needed() -> None:
    with pytest.raises(InvalidOption, match="--model"):
        compose({}, {})


@pytest.mark.parametrize("name", ["", "../x", "a/b", "-x", ".hidden", "a b", "x" * 65, "a\n"])
def test_names_are_folder_names(name: str) -> None:
    with pytest.raises(InvalidOption, match="--name"):
        compose({}, {"model": "m", "name": name})


@pytest.mark.parametrize("model", ["meta-llama/Llama-3.1-8B-Instruct", "/a b/c$(d)/", "~/модель", "...", "x" * 300])
def test_default_names_are_always_valid(model: str) -> None:
    assert compose({}, {"model": model}).name == default_name(model, "chat", None)


def test_a_default_name_says_model_workload_and_node() -> None:
    assert default_name("meta-llama/Llama-3.1-8B-Instruct", "w/chat.yaml", "4xL4") == "llama-3.1-8b-instruct-chat-4xl4"


def test_trials() -> None:
    assert parse_trials("24") == (24, False)
    assert parse_trials("+10") == (10, True)


@pytest.mark.parametrize("text", ["", "0", "-3", "+0", "1.5", "ten", "9999999"])
def test_wrong_trials(text: str) -> None:
    with pytest.raises(InvalidOption, match="--trials"):
        parse_trials(text)


def test_gpus() -> None:
    assert parse_gpus("0, 3") == (0, 3)


@pytest.mark.parametrize("text", ["", "0,0", "a", "-1", "0,,1", "0;1"])
def test_wrong_gpus(text: str) -> None:
    with pytest.raises(InvalidOption, match="--gpus"):
        parse_gpus(text)


def test_load() -> None:
    assert parse_load("auto") == LoadChoice()
    found = parse_load("concurrency=64,rate=12.5,requests=200")
    assert found == LoadChoice(concurrency=64, rate_rps=12.5, requests=200)
    assert found.fixed
    assert not parse_load("rate=3").fixed


@pytest.mark.parametrize(
    "text", ["", "64", "concurrency=0", "rate=x", "speed=3", "rate=1,rate=2", "concurrency=1.5", "rate=nan", "rate=inf"]
)
def test_wrong_load(text: str) -> None:
    with pytest.raises(InvalidOption, match="--load"):
        parse_load(text)


def test_study_files_by_path_or_name(tmp_path: Path) -> None:
    path = written(tmp_path, "model: a/b")
    assert find_study_file(str(path), ()) == path
    assert find_study_file("study", (tmp_path,)) == path
    with pytest.raises(UnknownName, match="did you mean: study"):
        find_study_file("studdy", (tmp_path,))


def test_every_error_is_ours(tmp_path: Path) -> None:
    with pytest.raises(AutotuneError):
        find_study_file(str(tmp_path / "none.yaml"), ())


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("1000", "1000 is not accepted; allowed: Input should be 'auto', or less than or equal to 64"),
        ("node", "'node' is not accepted; allowed: Input should be 'auto', or a valid integer"),
    ],
)
def test_a_key_of_several_kinds_is_named_as_it_was_written_with_all_that_it_may_be(tmp_path, said, shown):
    file = tmp_path / "s.yaml"
    file.write_text(f"model: m/n\nparallel: {said}\n")
    with pytest.raises(InvalidFile) as caught:
        read_study_file(file)
    assert f"at parallel: {shown}" in caught.value.message
