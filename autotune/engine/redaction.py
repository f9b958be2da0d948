"""Secrets out of everything that is shown or stored: logs, command lines, error texts, URLs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

REDACTED = "<redacted>"

_VALUE = r"""[^\s'",;&)\]}<>]+"""
_UNLESS_UNSET = r"(?!(?:None|True|False|null|true|false)\b)"

# Each pattern captures what stays in `keep`; everything else that it matched is replaced.
# Environment names are matched in capitals only: `bos_token=<s>` and `max_tokens=7` are no secrets.
_PROSE: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # Tokens that announce themselves by their prefix, wherever they stand (Hugging Face, OpenAI, GitHub, GitLab,
        # NVIDIA, AWS key ids).
        r"(?P<keep>)hf_[A-Za-z0-9]{16,}",
        r"(?P<keep>)(?<![A-Za-z0-9])(?:sk|nvapi|glpat)-[A-Za-z0-9_-]{16,}",
        r"(?P<keep>)(?<![A-Za-z0-9])gh[opsur]_[A-Za-z0-9]{20,}",
        r"(?P<keep>)(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        # https://user:password@host
        r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"<>]+(?=@)",
        # ?token=..., &X-Amz-Signature=...
        rf"(?P<keep>[?&][\w.-]{{0,60}}(?:[Tt]oken|[Kk]ey|[Ss]ignature|[Ss]ecret|[Cc]redential|[Pp]assword|sig)=){_VALUE}",
        # HF_TOKEN=x, 'AWS_SECRET_ACCESS_KEY': 'x'
        rf"(?P<keep>\b[A-Z0-9_]{{0,60}}(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD)['\"]?\s?[=:]\s?['\"]?){_UNLESS_UNSET}{_VALUE}",
        rf"(?P<keep>--(?:api-key|hf-token|token|password)=['\"]?){_VALUE}",
        # Python's and JSON's spelling: api_key='x', "api_key": ["x", "y"], hf_token=x
        r"(?P<keep>\b(?:api_key|hf_token|access_token|auth_token|secret_key|client_secret|password)['\"]?\s?[=:]\s?)"
        r"\[[^\]\n]*\]",
        r"(?P<keep>\b(?:api_key|hf_token|access_token|auth_token|secret_key|client_secret|password)['\"]?\s?[=:]\s?['\"]?)"
        rf"{_UNLESS_UNSET}{_VALUE}",
    )
)
"""What gives itself away in any text."""

_PATTERNS: tuple[re.Pattern[str], ...] = (
    *_PROSE,
    *(
        re.compile(pattern)
        for pattern in (
            # Authorization: Bearer X, Basic X
            r"(?P<keep>\b[Bb]earer\s+|\b[Aa]uthorization['\"]?\s*[:=]\s*['\"]?(?:[Bb]asic|[Tt]oken)\s+)[A-Za-z0-9._~+/=-]+",
            # --api-key a b, --hf-token=x; and the same inside the repr of a list
            rf"(?P<keep>--(?:api-key|hf-token|token|password)(?:=|[^\S\n]+)['\"]?){_VALUE}(?:[^\S\n]+(?!-){_VALUE})*",
            r"(?P<keep>['\"]--(?:api-key|hf-token|token|password)['\"],\s*['\"])[^'\"\n]+",
        )
    ),
)


_SECRET_NAME = re.compile(
    r"(?:.*[_-])?(?:token|secret|password|passwd|credentials?)|(?:.*[_-])?(?:api|access|private|secret|auth)[_-]?key|(?-i:.*_KEY)"
    r"|authorization",
    re.IGNORECASE,
)
"""Names of settings and variables whose values are secrets. `max_tokens` and `tokenizer` are none."""

_NOT_SECRET = frozenset({"bos_token", "eos_token", "pad_token", "unk_token", "mask_token", "sep_token", "cls_token"})

_LINE_BYTES = 1024 * 1024
_OVERLAP = 4096
"""A longer line is taken in pieces, as a log may have one of a hundred megabytes; so much of each is looked at again
with the next, so that no secret, nor the name before it, is cut in two."""


def is_secret_name(name: str) -> bool:
    """Whether a variable, flag or key of this name holds a secret: `HF_TOKEN`, `api-key`, `env:MY_PASSWORD`."""
    bare = name.removeprefix("env:").lstrip("-")
    return bare.lower() not in _NOT_SECRET and _SECRET_NAME.fullmatch(bare) is not None


def redact_data(data: Any) -> Any:
    """JSON with every secret taken out that its words or the names beside them give away; keys stay.

    Names beside: keys of objects, the first of a pair (`["HF_TOKEN", "x"]`), and flags in lists of words.
    """
    if isinstance(data, str):
        return redact(data)
    if isinstance(data, dict):
        return {key: _hidden(value) if is_secret_name(str(key)) else redact_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return _redact_list(data)
    return data


def _redact_list(data: Sequence[Any]) -> list[Any]:
    if len(data) == 2 and isinstance(data[0], str) and not data[0].startswith("-") and is_secret_name(data[0]):
        return [data[0], _hidden(data[1])]
    shown: list[Any] = []
    secret = False
    for item in data:
        flag = isinstance(item, str) and item.startswith("-")
        shown.append(_hidden(item) if secret and not flag else redact_data(item))
        # All words behind a secret flag: `--api-key` takes several.
        secret = is_secret_name(item) if flag else secret
    return shown


def _hidden(value: Any) -> Any:
    if isinstance(value, str):
        return value and REDACTED
    return [REDACTED for _ in value] if isinstance(value, (list, tuple)) else redact_data(value)


def redact_stream(stream: BinaryIO) -> Iterator[bytes]:
    """A log's bytes, secrets taken out; what is no UTF-8 stays as it is."""
    left = ""
    while piece := stream.readline(_LINE_BYTES):
        shown = redact(left + piece.decode("utf-8", "surrogateescape"))
        goes_on = len(piece) == _LINE_BYTES and not piece.endswith(b"\n")
        cut = max(0, len(shown) - _OVERLAP) if goes_on else len(shown)
        left = shown[cut:]
        yield shown[:cut].encode("utf-8", "surrogateescape")
    if left:
        yield left.encode("utf-8", "surrogateescape")


def redact(text: str) -> str:
    """The text with every secret that can be recognised replaced by `<redacted>`; redacting twice changes nothing.

    Errs on the side of taking too much: words that follow `--api-key` on the same line go with it.
    """
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<keep>{REDACTED}", text)
    return text


def redact_prose(text: str) -> str:
    """As `redact`, for sentences that speak of `--api-key` or of a bearer token and go on with other words."""
    for pattern in _PROSE:
        text = pattern.sub(rf"\g<keep>{REDACTED}", text)
    return text
