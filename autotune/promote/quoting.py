"""Text made safe for each syntax that the targets speak. Every function here is total: no text can break out.

The targets are read by bash, YAML 1.1 and 1.2 parsers, systemd, Compose's interpolation and Kubernetes' expansion; a
study or model name is whatever somebody typed.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping

import yaml

_NOT_SLUG = re.compile(r"[^a-z0-9]+")
_DIGEST = 6
_PLAIN_YAML = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*\Z")
YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Plain scalars that some version of YAML takes for no text."""


def slug(name: str, *, limit: int = 50) -> str:
    """A name fit for a DNS-1035 label, a container, a unit file and a path: `[a-z]([a-z0-9-]*[a-z0-9])?`.

    Kubernetes allows 63 characters; the limit leaves room for suffixes such as `-cache`. What is cut ends with a digest
    of all of it: `llama-3.1-8b-instruct-chat` and `llama-3.1-8b-instruct-code` must not become one Helm release.
    """
    text = _NOT_SLUG.sub("-", name.lower()).strip("-")
    if not text:
        return "vllm"
    if not text[0].isalpha():
        text = f"v-{text}"
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    return f"{text[: limit - _DIGEST - 1].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """A Kubernetes label value: at most 63 of `[A-Za-z0-9._-]`, alphanumeric at both ends."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("._-") or "unnamed"


def comment_text(text: str) -> str:
    """One printable line: whatever could end a comment (CR, LF, NEL, U+2028, escapes) is shown as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


def shell_word(text: str) -> str:
    """One bash word on one line.

    `shlex.quote` keeps a newline as it is, which breaks comments and one-line commands; such text becomes `$'...'`.
    """
    if text.isprintable():
        return shlex.quote(text)
    return "$'" + "".join(_ansi_c(char) for char in text) + "'"


def _ansi_c(char: str) -> str:
    if char in "\\'":
        return f"\\{char}"
    if char.isprintable():
        return char
    # Octal bytes with all three digits: \x would swallow a hex digit that follows, \u depends on bash's locale.
    return "".join(f"\\{byte:03o}" for byte in char.encode())


def shell_line(argv: Iterable[str]) -> str:
    """A command line that bash splits back into exactly `argv`."""
    return " ".join(shell_word(word) for word in argv)


def shell_rows(argv: Iterable[str]) -> tuple[str, ...]:
    """`argv` over several lines of a bash array, a flag and its value on one line."""
    rows: list[str] = []
    waiting = False
    for word in argv:
        if waiting and not word.startswith("-"):
            rows[-1] += f" {shell_word(word)}"
            waiting = False
        else:
            rows.append(shell_word(word))
            waiting = word.startswith("--") and "=" not in word
    return tuple(rows)


def double_dollars(text: str) -> str:
    """`$` doubled: Compose interpolates `$X` and `${X}`, Kubernetes expands `$(X)`; both read `$$` as one `$`."""
    return text.replace("$", "$$")


def systemd_word(text: str, *, dollars: bool) -> str:
    """One word of a unit file line, always in double quotes with C escapes (systemd.syntax(7)).

    Args:
        text: the word; must not hold NUL.
        dollars: double `$` too, as ExecStart= expands variables and Environment= does not.
    """
    escaped = "".join(_systemd_char(char) for char in text).replace("%", "%%")
    return f'"{double_dollars(escaped) if dollars else escaped}"'


def _systemd_char(char: str) -> str:
    if char in '\\"':
        return f"\\{char}"
    if char.isprintable():
        return char
    # Bytes of the UTF-8 form: \u is known to systemd only from 235 on.
    return "".join(f"\\x{byte:02x}" for byte in char.encode())


class _Dumper(yaml.SafeDumper):
    """Quotes every string that any YAML version might read as something else (`1e3`, `0o17`, `no`, `12:30:00`)."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the signature is PyYAML's
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - as above
        return super().increase_indent(flow, False)


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    if _PLAIN_YAML.match(text) and text.lower() not in YAML_WORDS:
        return dumper.represent_scalar("tag:yaml.org,2002:str", text)
    style = "'" if text.isascii() and text.isprintable() else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_str)


def yaml_text(document: Mapping[str, object]) -> str:
    """A document in the subset of YAML that 1.1 and 1.2 parsers read alike: ASCII, no anchors, keys in given order."""
    text: str = yaml.dump(
        dict(document), Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1 << 20, allow_unicode=False
    )
    return text
