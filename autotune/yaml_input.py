"""YAML that people write, read once at the border: studies, spaces, workloads.

Stricter than YAML itself, so that what follows can trust what it gets: no key twice (PyYAML keeps the last), no
aliases (a file of a kilobyte can stand for gigabytes), no object tags, only finite numbers of 64 bits, only printable
text, and a file of bounded size. Every refusal is an `InvalidFile` with its place.
"""

from __future__ import annotations

import math
import stat
import unicodedata
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import InvalidFile

MAX_FILE_BYTES = 1 << 18
"""Far above any honest file (the shipped ones have 1-4 KB); the parser takes seconds for a megabyte."""

_ALLOWED = "plain YAML (keys once, no aliases, no object tags, finite numbers, printable text)"


def existing_file(name: str) -> Path | None:
    """The path that `name` stands for (`~` expanded), when something is there.

    A name that no file system could hold (too long, a loop of links) is one where nothing is.
    """
    try:
        path = Path(name).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):  # RuntimeError: `~nobody`
        return None


def read_yaml(path: Path) -> Any:
    """What a file says.

    Raises:
        InvalidFile: cannot be read, no regular file, too large, not UTF-8, or see `parse_yaml`.
    """
    file = str(path)
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            # A pipe or a device would be waited for, or read, for ever.
            kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a device or a pipe"
            raise InvalidFile(file, "", kind, "a regular YAML file")
        with path.open("rb") as stream:
            content = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidFile(file, "", error.strerror or str(error), "a readable YAML file") from None
    if len(content) > MAX_FILE_BYTES:
        size = max(found.st_size, len(content))
        raise InvalidFile(file, "", f"{size} bytes", f"at most {MAX_FILE_BYTES} bytes")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidFile(file, "", f"byte {error.start} is not UTF-8", "text in UTF-8") from None
    return parse_yaml(text, file=file)


def parse_yaml(text: str, *, file: str) -> Any:
    """What a text says, in dicts, lists and plain values; `file` is named in errors.

    Raises:
        InvalidFile: not YAML, or YAML that is not accepted here.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader that refuses more
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InvalidFile(file, where, error.problem or str(error), _ALLOWED) from None
    except yaml.reader.ReaderError as error:
        seen = f"the character {error.character!r} at position {error.position}"
        raise InvalidFile(file, "", seen, _ALLOWED) from None
    except RecursionError:
        raise InvalidFile(file, "", "nested too deeply", _ALLOWED) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: 2020-99-99, a number of 5000 digits
        raise InvalidFile(file, "", str(error), _ALLOWED) from None


class _StrictLoader(yaml.SafeLoader):
    """See the module."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # PyYAML has no types here
            raise yaml.constructor.ConstructorError(None, None, f"alias *{event.anchor}", event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key in seen:
                raise _refused(key_node, f"key {key!r} is given twice")
            if isinstance(key, str):
                seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def plain_text(self, node: yaml.ScalarNode) -> str:
        text = str(self.construct_scalar(node))
        bad = next((sign for sign in text if sign not in "\n\t" and unicodedata.category(sign) in ("Cc", "Cs")), None)
        if bad is not None:
            raise _refused(node, f"the control character {bad!r} in a text")
        return text

    def bounded_int(self, node: yaml.ScalarNode) -> int:
        value = int(self.construct_yaml_int(node))
        if not -(2**63) <= value < 2**63:
            raise _refused(node, "a number of more than 64 bits")
        return value

    def finite_float(self, node: yaml.ScalarNode) -> float:
        value = float(self.construct_yaml_float(node))
        if not math.isfinite(value):
            raise _refused(node, f"the number {value}")
        return value


_StrictLoader.add_constructor("tag:yaml.org,2002:str", _StrictLoader.plain_text)
_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.bounded_int)
_StrictLoader.add_constructor("tag:yaml.org,2002:float", _StrictLoader.finite_float)


def _refused(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
