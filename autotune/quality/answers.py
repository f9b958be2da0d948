"""What a server answered to the guard's prompts, and the file that keeps it beside the trial's raw records."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from autotune.errors import StorageError

ANSWERS_FILE = "quality.json.gz"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """To one prompt.

    Attributes:
        name: of the prompt.
        prompt_ids: token ids of the prompt as the server split it.
        logprobs: natural logarithm of the probability of each prompt token but the first, given those before it.
        greedy: tokens generated at temperature 0, as the server spells them.
    """

    name: str
    prompt_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    greedy: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """To all prompts.

    Attributes:
        problem: why there are none; None where there are.
        seconds: that asking took.
    """

    answers: tuple[Answer, ...] = ()
    problem: str | None = None
    seconds: float | None = None


_ANSWERS = TypeAdapter(tuple[Answer, ...])


def write_answers(directory: Path, prompt_set: str, found: Answers) -> Path:
    """Keep the answers; the file is put in place whole or not at all.

    Raises:
        StorageError: it cannot be written.
    """
    path = directory / ANSWERS_FILE
    document = {"format": FORMAT, "prompt_set": prompt_set, "answers": [asdict(one) for one in found.answers]}
    part = path.with_suffix(".part")
    try:
        part.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
        part.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}") from None
    return path


def read_answers(directory: Path, prompt_set: str) -> tuple[Answer, ...] | None:
    """The answers that a trial left; None where there are none that can be read, or they are to other prompts."""
    try:
        document = json.loads(gzip.decompress((directory / ANSWERS_FILE).read_bytes()))
        if document["format"] != FORMAT or document["prompt_set"] != prompt_set:
            return None
        return _ANSWERS.validate_python(document["answers"])
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, ValidationError):
        return None
