"""Secrets out of everything that is shown or stored: logs, command lines, error texts, URLs."""

from __future__ import annotations

import re

REDACTED = "<redacted>"

_VALUE = r"""[^\s'",;&)\]}<>]+"""
_UNLESS_UNSET = r"(?!(?:None|True|False|null|true|false)\b)"

# Each pattern captures what stays in `keep`; everything else that it matched is replaced.
# Environment names are matched in capitals only: `bos_token=<s>` and `max_tokens=7` are no secrets.
_PATTERNS: tuple[re.Pattern[str], ...] = tuple(
    re.compile(pattern)
    for pattern in (
        # Tokens that announce themselves by their prefix, wherever they stand (Hugging Face, OpenAI, GitHub, GitLab,
        # NVIDIA, AWS key ids).
        r"(?P<keep>)(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}",
        r"(?P<keep>)(?<![A-Za-z0-9])(?:sk|nvapi|glpat)-[A-Za-z0-9_-]{16,}",
        r"(?P<keep>)(?<![A-Za-z0-9])gh[opsur]_[A-Za-z0-9]{20,}",
        r"(?P<keep>)(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        # Authorization: Bearer X, Basic X
        r"(?P<keep>\b[Bb]earer\s+|\b[Aa]uthorization['\"]?\s*[:=]\s*['\"]?(?:[Bb]asic|[Tt]oken)\s+)[A-Za-z0-9._~+/=-]+",
        # https://user:password@host
        r"(?P<keep>\b[A-Za-z][A-Za-z0-9+.-]{0,30}://)[^\s/@'\"<>]+(?=@)",
        # ?token=..., &X-Amz-Signature=...
        rf"(?P<keep>[?&][\w.-]{{0,60}}(?:[Tt]oken|[Kk]ey|[Ss]ignature|[Ss]ecret|[Cc]redential|[Pp]assword|sig)=){_VALUE}",
        # HF_TOKEN=x, 'AWS_SECRET_ACCESS_KEY': 'x'
        rf"(?P<keep>\b[A-Z0-9_]{{0,60}}(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD)['\"]?\s?[=:]\s?['\"]?){_UNLESS_UNSET}{_VALUE}",
        # Python's and JSON's spelling: api_key='x', "api_key": ["x", "y"], hf_token=x
        r"(?P<keep>\b(?:api_key|hf_token|access_token|auth_token|secret_key|client_secret|password)['\"]?\s?[=:]\s?)"
        r"\[[^\]\n]*\]",
        r"(?P<keep>\b(?:api_key|hf_token|access_token|auth_token|secret_key|client_secret|password)['\"]?\s?[=:]\s?['\"]?)"
        rf"{_UNLESS_UNSET}{_VALUE}",
        # --api-key a b, --hf-token=x; and the same inside the repr of a list
        rf"(?P<keep>--(?:api-key|hf-token|token|password)(?:=|[^\S\n]+)['\"]?){_VALUE}(?:[^\S\n]+(?!-){_VALUE})*",
        r"(?P<keep>['\"]--(?:api-key|hf-token|token|password)['\"],\s*['\"])[^'\"\n]+",
    )
)


def redact(text: str) -> str:
    """The text with every secret that can be recognised replaced by `<redacted>`; redacting twice changes nothing.

    Errs on the side of taking too much: words that follow `--api-key` on the same line go with it.
    """
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<keep>{REDACTED}", text)
    return text
