"""Configs to command lines and back, and what a vLLM's own parser accepts, read from its help text. Pure."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter

from autotune.errors import InvalidOption
from autotune.records import Config, Value

ENV_PREFIX = "env:"

MANAGED_FLAGS = frozenset({"host", "port", "model", "uds", "config", "data-parallel-rpc-port"})
"""What a launch decides for itself; passed through, they would make it wait at the wrong door."""

MODEL = "model"
"""The parameter that names the checkpoint: a launch passes it in its own place, so it is no flag among the others."""

SECRET_FLAGS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}
"""Flags whose value is a secret, and the variable that carries it instead: what is inherited is not stored."""

# Flags that vLLM declares without a `--no-` form; what `--help` of the installed version says goes first.
STORE_TRUE_FLAGS = frozenset({"disable-log-stats", "aggregate-engine-logging", "headless", "grpc"})

# The short forms that people write; vLLM's other short forms (-cc, -O) take structured values.
_SHORT = {
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-dp": "data-parallel-size",
    "-ep": "enable-expert-parallel",
    "-q": "quantization",
    "-asc": "api-server-count",
}
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagSpec:
    """One flag of vLLM's parser, name without dashes.

    Attributes:
        takes_value: False for switches.
        negatable: a switch that has a `--no-` form.
        choices: the closed set of values; empty when anything goes.
    """

    name: str
    takes_value: bool
    negatable: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedFlags:
    """What one vLLM's parser accepts, flags ordered by name."""

    flags: tuple[FlagSpec, ...]

    def get(self, name: str) -> FlagSpec | None:
        """The flag of that name, or None."""
        at = bisect_left(self.flags, name, key=attrgetter("name"))
        return self.flags[at] if at < len(self.flags) and self.flags[at].name == name else None

    def problem(self, name: str, value: Value) -> str | None:
        """Why this parser would refuse the parameter, one clause; None when it would not.

        Types and ranges are not in a help text, so only names, switches and closed sets are judged; `env:` parameters
        and `model` are no flags, and never refused.
        """
        if name.startswith(ENV_PREFIX) or name == MODEL or value is None:
            return None
        flag = self.get(name)
        if flag is None:
            near = get_close_matches(name, [f.name for f in self.flags], n=2, cutoff=0.6)
            tail = f" (did you mean {', '.join(f'--{n}' for n in near)}?)" if near else ""
            return f"this vLLM has no flag --{name}{tail}"
        if not flag.takes_value:
            if not isinstance(value, bool):
                return f"--{name} is a switch and takes no value, {value!r} was given"
            return None
        if isinstance(value, bool):
            return f"--{name} needs a value, {str(value).lower()} was given"
        if flag.choices and str(value) not in flag.choices:
            return f"--{name} {value} is not one of {', '.join(flag.choices)}"
        return None


def to_argv(config: Config, accepted: AcceptedFlags | None = None) -> tuple[str, ...]:
    """The flags of a config, in its order; `env:` parameters, `model` and None values (vLLM's default) are left out.

    True is `--flag`, False `--no-flag`, or nothing for a switch without that form. A value that begins with a dash or
    is empty is written `--flag=value`, which argparse cannot mistake for another flag.
    """
    argv: list[str] = []
    for name, value in config:
        if value is None or name == MODEL or name.startswith(ENV_PREFIX):
            continue
        if value is True:
            argv.append(f"--{name}")
        elif value is False:
            if _negatable(name, accepted):
                argv.append(f"--no-{name}")
        elif (text := _text(value)).startswith("-") or not text:
            argv.append(f"--{name}={text}")
        else:
            argv += [f"--{name}", text]
    return tuple(argv)


def to_env(config: Config) -> dict[str, str]:
    """The environment variables of a config; switches as vLLM reads them, 1 and 0."""
    return {
        name.removeprefix(ENV_PREFIX): str(int(value)) if isinstance(value, bool) else _text(value)
        for name, value in config
        if name.startswith(ENV_PREFIX) and value is not None
    }


def from_argv(argv: Sequence[str]) -> Config:
    """The config that a list of flags stands for: the inverse of `to_argv` for reading, e.g. what followed `--`.

    A token that looks like a number becomes one; a later flag wins; underscores in flag names are dashes, as in vLLM.
    Values of a flag that takes several are joined by blanks: enough to show and compare, not to launch again.

    Raises:
        InvalidOption: a word that belongs to no flag, or a short form that we do not know.
    """
    found: dict[str, list[str]] = {}
    current: str | None = None
    for token in argv:
        name, equals, value = token.partition("=")
        if name in _SHORT:
            name = f"--{_SHORT[name]}"
        if name.startswith("--") and len(name) > 2:
            current = name[2:].replace("_", "-")
            found[current] = [value] if equals else []
            if equals:
                current = None
        elif current is not None and (not token.startswith("-") or _NUMBER.fullmatch(token)):
            found[current].append(token)
        else:
            raise InvalidOption("--", token, "flags in their long form, each followed by its value")
    values: dict[str, Value] = {}
    for name, words in found.items():
        if words:
            values[name] = _parse(" ".join(words))
        elif name.startswith("no-"):
            values[name.removeprefix("no-")] = False
        else:
            values[name] = True
    return Config.of(values)


def parse_help(text: str) -> AcceptedFlags:
    """The flags listed in `vllm serve --help=all` (argparse's option list; the usage lines above it are ignored).

    Understands `--x, --no-x` pairs, `{a,b}` choices (open ones, "{a,b} or name registered in ...", have none), the
    value's name once at the end (Python 3.13) or behind every form, and switches without a value. Choices in quotes and
    square brackets are only hints of vLLM's and stay open.
    """
    found: dict[str, FlagSpec] = {}
    for line in text.splitlines():
        # Entries start in column 2; help texts, also those that begin with a dash, are indented further.
        if not re.match(r" {2}-{1,2}\w", line):
            continue
        found.update((flag.name, flag) for flag in _parse_entry(line.strip()))
    return AcceptedFlags(flags=tuple(found[name] for name in sorted(found)))


def _parse_entry(entry: str) -> list[FlagSpec]:
    """The flag of one entry, once for each of its long names."""
    # Help that fits on the entry's line stands two or more blanks behind it.
    invocation = re.split(r"\s{2,}", entry)[0]
    names = re.findall(r"(?:^|, )--([A-Za-z0-9][\w-]*)", invocation)
    rest = re.sub(r"(?:^|, )-{1,2}[\w-]+", "", invocation).strip()
    choices: tuple[str, ...] = ()
    closed = re.search(r"\{([^}]*)\}(?! or )", invocation)
    if closed:
        choices = tuple(choice.strip() for choice in closed[1].split(",") if choice.strip())
    return [
        FlagSpec(name=name, takes_value=bool(rest), negatable=f"no-{name}" in names, choices=choices)
        for name in names
        if not (name.startswith("no-") and name.removeprefix("no-") in names)
    ]


def _negatable(name: str, accepted: AcceptedFlags | None) -> bool:
    flag = accepted.get(name) if accepted is not None else None
    return flag.negatable if flag is not None else name not in STORE_TRUE_FLAGS


def _text(value: int | float | str) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _parse(text: str) -> Value:
    match = _NUMBER.fullmatch(text)
    if match is None:
        return text
    return int(text) if match[1] is None and "e" not in text.lower() else float(text)
