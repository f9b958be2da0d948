import re

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from promote_cases import bash_words, systemd_words, undollared
from ruamel.yaml import YAML

from autotune.promote.quoting import (
    comment_text,
    double_dollars,
    label_value,
    shell_line,
    slug,
    systemd_word,
    yaml_text,
)

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
NASTY = 'it\'s "$(rm -rf /)" `x` \\ %n ${HOME}\r\n; # \x1b[31m\u2028\x85é💥7'


@settings(max_examples=60, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=6))
@example([NASTY, "", "-x", "\x017"])
def test_bash_splits_a_line_back_into_its_words(words: list[str]) -> None:
    line = shell_line(words)
    assert "\n" not in line
    assert bash_words(line) == words


@given(st.lists(WORDS, min_size=1, max_size=6), st.booleans())
@example([NASTY, "", ";", "-x"], True)
def test_systemd_reads_words_back(words: list[str], dollars: bool) -> None:
    line = " ".join(systemd_word(word, dollars=dollars) for word in words)
    assert systemd_words(line, dollars=dollars) == words


@given(WORDS)
@example("$$(HOME) $(HOME) $ ${HOME}")
def test_kubernetes_expands_nothing(word: str) -> None:
    assert undollared(double_dollars(word), {"HOME": "gone"}) == word


@given(st.dictionaries(WORDS, st.one_of(WORDS, st.integers(), st.booleans(), st.floats(0.001, 10)), min_size=1))
@example({"a": "1e3", "b": "0o17", "c": "no", "d": "12:30:00", "e": "null", "f": NASTY, "g": "~", "h": "=", "y": "1_0"})
def test_yaml_1_1_and_1_2_read_the_same(document: dict[str, object]) -> None:
    text = yaml_text(document)
    assert text.isascii()
    assert yaml.safe_load(text) == document
    assert YAML(typ="safe", pure=True).load(text) == document


@given(st.text())
def test_a_comment_stays_on_its_line(text: str) -> None:
    assert len(f"# {comment_text(text)}".splitlines()) == 1
    comment_text(text).encode()


@given(st.text())
@example("Llama 3.1 / chat")
@example("9lives")
@example("-" * 80)
@example("a" * 49 + "-b")
def test_a_slug_is_a_dns_label(text: str) -> None:
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?", slug(text))


@given(st.text())
def test_a_label_value_is_one(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", label_value(text))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("prod-chat", "prod-chat"), ("Llama 3.1 / chat", "llama-3-1-chat"), ("9lives", "v-9lives"), ("💥", "vllm")],
)
def test_slugs_stay_recognisable(name: str, expected: str) -> None:
    assert slug(name) == expected
