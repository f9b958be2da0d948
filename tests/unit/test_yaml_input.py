"""YAML at the border: what is let in, and that everything else is an InvalidFile with its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InvalidFile
from autotune.yaml_input import MAX_FILE_BYTES, existing_file, parse_yaml, read_yaml

LAUGHS = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"


def test_plain_yaml_is_taken_as_it_is() -> None:
    text = "a: 1\nb: [true, null, 1.5, 'two\\tlines', -0x10]\nc:\n  d: |\n    x\n    y\n"
    assert parse_yaml(text, file="f") == {"a": 1, "b": [True, None, 1.5, "two\\tlines", -16], "c": {"d": "x\ny\n"}}


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("a: 1\na: 2\n", "line 2, column 1", "given twice"),
        ("x: {a: 1, a: 2}\n", "line 1, column 11", "given twice"),
        (LAUGHS, "line 2, column 8", "alias *a"),
        ("a: !!python/object/apply:os.system [id]\n", "line 1, column 4", "python/object"),
        ("a: !mine 3\n", "line 1, column 4", "!mine"),
        ("a: [1\n", "line 2", "','"),
        ("a: b: c\n", "line 1, column 5", "mapping values"),
        ("---\na: 1\n---\nb: 1\n", "line 3", "document"),
        ("a: \x00\n", "", "position 3"),
        ('a: "\\0"\n', "line 1, column 4", "control character"),
        ('a: "\\e[31m"\n', "line 1, column 4", "control character"),
        ('a: "\\ud800"\n', "line 1, column 4", "control character"),
        ("a: .inf\n", "line 1, column 4", "inf"),
        ("a: .nan\n", "line 1, column 4", "nan"),
        (f"a: {2**63}\n", "line 1, column 4", "64 bits"),
        (f"a: 0x{'f' * 6000}\n", "line 1, column 4", "64 bits"),
        (f"a: {'9' * 5000}\n", "", "4300 digits"),
        ("a: 2020-99-99\n", "", "month"),
        pytest.param("[" * 5000, "", "nested too deeply", marks=pytest.mark.no_cover),
        ("? [a]\n: b\n", "line 1, column 3", "unhashable"),
    ],
)
def test_what_is_refused(text: str, key: str, says: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        parse_yaml(text, file="f.yaml")
    assert caught.value.key.startswith(key)
    assert says in str(caught.value)
    assert str(caught.value).startswith("f.yaml")


@given(st.text() | st.text(alphabet="{}[]:,-?&*!|>'\"#%@` \n\tab01.~<"))
def test_no_text_raises_anything_else(text: str) -> None:
    try:
        parse_yaml(text, file="f")
    except InvalidFile:
        return


def test_files_that_cannot_be_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    (tmp_path / "full.yaml").write_bytes(b"a: 1\n".ljust(MAX_FILE_BYTES, b"#"))
    (tmp_path / "latin.yaml").write_bytes(b"a: caf\xe9")
    os.mkfifo(tmp_path / "pipe.yaml")
    for path, says in (
        (tmp_path / "big.yaml", f"at most {MAX_FILE_BYTES} bytes"),
        (tmp_path / "latin.yaml", "byte 6 is not UTF-8"),
        (tmp_path / "pipe.yaml", "a device or a pipe"),
        (Path("/dev/zero"), "a device or a pipe"),
        (tmp_path, "a folder"),
        (tmp_path / "none.yaml", "No such file"),
    ):
        with pytest.raises(InvalidFile, match=says):
            read_yaml(path)
    assert set(read_yaml(tmp_path / "full.yaml")) == {"a"}


def test_names_where_nothing_can_be(tmp_path: Path) -> None:
    assert existing_file(str(tmp_path)) == tmp_path
    assert existing_file(str(tmp_path / "none")) is None
    assert existing_file("a" * 5000) is None
    assert existing_file("a\0b") is None
    assert existing_file("~no-such-user/x") is None
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert existing_file(str(loop)) is None
