"""The prompts of the guard, shipped and brought, and the file that keeps the answers."""

from __future__ import annotations

import pytest
import yaml

from autotune.errors import InvalidFile
from autotune.quality.answers import Answer, Answers, read_answers, write_answers
from autotune.quality.prompts import load_prompts

OWN = {"output_tokens": 8, "prompts": [{"subject": "law", "text": "The contract ends"}, {"text": "Two plus two is"}]}


def write(tmp_path, content):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_the_shipped_prompts_lean_on_mathematics_code_and_reasoning():
    found = load_prompts()
    subjects = [one.subject for one in found.prompts]
    assert {subject: subjects.count(subject) >= 10 for subject in set(subjects)} == {
        "mathematics": True,
        "code": True,
        "reasoning": True,
    }
    assert len({one.text for one in found.prompts}) == len(found.prompts)
    assert not any(one.text != one.text.rstrip() for one in found.prompts)
    assert found.name.startswith("shipped (")


def test_own_prompts_come_from_a_file(tmp_path):
    found = load_prompts(write(tmp_path, OWN))
    assert [(one.name, one.subject) for one in found.prompts] == [("001", "law"), ("002", "")]
    assert found.output_tokens == 8
    assert found.name.startswith("own.yaml (")
    other = load_prompts(write(tmp_path, {**OWN, "output_tokens": 9}))
    assert other.name != found.name


@pytest.mark.parametrize(
    ("content", "key"),
    [
        ({"prompts": []}, "prompts"),
        ({"prompts": [{"text": ""}]}, "prompts.0.text"),
        ({"prompts": [{"text": "x", "answer": "y"}]}, "prompts.0.answer"),
        ({"prompts": [{"text": "x"}], "output_tokens": 0}, "output_tokens"),
        (["x"], ""),
    ],
)
def test_a_bad_file_says_where(tmp_path, content, key):
    with pytest.raises(InvalidFile) as caught:
        load_prompts(write(tmp_path, content))
    assert key in str(caught.value)
    assert "own.yaml" in str(caught.value)


def test_answers_come_back_and_only_to_the_same_prompts(tmp_path):
    answers = (Answer(name="001", prompt_ids=(1, 2), logprobs=(-1.5, -0.25), greedy=("a", "b")),)
    path = write_answers(tmp_path, "own (1)", Answers(answers=answers))
    assert read_answers(tmp_path, "own (1)") == answers
    assert read_answers(tmp_path, "own (2)") is None
    path.write_bytes(path.read_bytes()[:20])
    assert read_answers(tmp_path, "own (1)") is None
    assert read_answers(tmp_path / "nowhere", "own (1)") is None
