"""Words that a shell would run, and secrets in every place that takes words, from end to end."""

from __future__ import annotations

from pathlib import Path

import pytest
from autotune_command import LIGHT, LLAMA, TINY, TRACE, run

from autotune.errors import ExitCode

OWNED = "owned"
HOSTILE = (f"$(touch {OWNED});`touch {OWNED}`'\"|touch {OWNED}\ntouch {OWNED}\n\u202eé", f"--x=$(touch {OWNED})")
TOKEN = "hf_" + "Zx81kQ0pLm55RtYw72Bv"
SPACE = "name: s\nparameters:\n  max-num-seqs: {choices: [32, 64]}\n  env:NOTE: {choices: [HOSTILE]}\n"


def nothing_ran(folder: Path) -> bool:
    return not any(path.name == OWNED for path in folder.rglob("*"))


@pytest.mark.parametrize("word", HOSTILE)
def test_words_are_words(word: str, tmp_path: Path) -> None:
    """One command that takes the word wherever it can stand; whatever it says, nothing is run."""
    for words in (
        ("study", *TINY, "--name", word),
        ("study", "--model", word, "--workload", word, "--space", word, "--node", word, "--slo", word),
        ("study", *TINY, "--engine", "process", "--vllm-command", word, "--start-deadline", "5"),
        ("show", word, "0"),
        ("import", word, "--name", word),
        ("export", word, "--out", word),
        ("pareto", word, "--picture", f"{word}.svg"),
        ("diagnose", word),
    ):
        ended = run(tmp_path, *words)
        assert ended.code not in (0, ExitCode.INTERNAL), (words, ended)
        assert TRACE not in ended.err + ended.out
        assert len(ended.err) < 4000
        assert nothing_ran(tmp_path), words


def test_values_of_a_study_reach_no_shell_and_no_secret_stays(tmp_path: Path) -> None:
    hostile = f"$(touch {OWNED});'\"`touch {OWNED}`"
    quoted = "'" + hostile.replace("'", "''") + "'"
    (tmp_path / "space.yaml").write_text(SPACE.replace("HOSTILE", quoted), encoding="utf-8")
    secrets = {"HF_TOKEN": TOKEN, "VLLM_API_KEY": TOKEN, "AUTOTUNE_STUDIES_DIR": str(tmp_path / "-results $(x)")}
    words = ("study", "--model", LLAMA, "--workload", "tiny", "--space", "./space.yaml", "--repeats", "0", *LIGHT)
    ended = run(tmp_path, *words, "--trials", "2", "--name", "s", env=secrets)
    assert ended.code == 0, ended.err
    told = [ended]
    for more in (("show", "s", "1"), ("pareto", "s", "--csv"), ("export", "s", "--out", "./-a.zip")):
        told.append(run(tmp_path, *more, env=secrets))
    told.append(run(tmp_path, "import", "./-a.zip", "--name", "t", env=secrets))
    assert [one.code for one in told[:4]] == [0, 0, 0, 0], told
    assert told[-1].code == 0, told[-1].err
    assert nothing_ran(tmp_path)
    assert not any(TOKEN in one.out + one.err for one in told)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if TOKEN.encode() in path.read_bytes()] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--", "--api-key", TOKEN), "no secrets"),
        (("--", "--hf-overrides", f'{{"x": "{TOKEN}"}}'), "no secrets"),
        (("--model", f"https://me:{TOKEN}@host/model"), "unknown model"),
    ],
)
def test_a_secret_in_a_command_is_refused_and_not_repeated(words: tuple[str, ...], says: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "study", *TINY, *LIGHT, *words)
    assert ended.code != 0
    assert says in ended.err
    assert TOKEN not in ended.err + ended.out
    assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("line", ["  env:MY_TOKEN: {choices: [a, b]}", f"  x: {{choices: [{TOKEN}, b]}}"])
def test_a_secret_in_a_space_is_refused_and_not_repeated(line: str, tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(f"name: s\nparameters:\n  max-num-seqs: {{choices: [32, 64]}}\n{line}\n")
    ended = run(tmp_path, "study", "--model", LLAMA, "--workload", "tiny", "--space", "./space.yaml")
    assert ended.code == ExitCode.INVALID_FILE
    assert "no secrets" in ended.err
    assert TOKEN not in ended.err
