"""Traces in tables: the columns of BurstGPT, of Azure's LLM inference traces, and other names for the same. Pure.

```
BurstGPT   Timestamp (s), Model, Request tokens, Response tokens, Total tokens, Log Type
Azure      TIMESTAMP (date and time), ContextTokens, GeneratedTokens
```
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator

from autotune.errors import InvalidFile
from autotune.load.trace_fields import (
    NO_OUTPUT,
    NO_PROMPT,
    OUTPUT_NAMES,
    PROMPT_NAMES,
    TIME_NAMES,
    Ordered,
    seconds_of,
    tokens_of,
)
from autotune.load.traces import RawRow

_DELIMITERS = (",", ";", "\t", "|")
_ALLOWED = (
    "a first row that names a column of prompt tokens (ContextTokens, Request tokens, prompt_tokens, input_length) and "
    "one of output tokens (GeneratedTokens, Response tokens, completion_tokens, output_length)"
)


class CsvRows:
    """Rows of a table, one by one.

    Attributes:
        source: the kind of table, once its head was read.
        skipped: rows left out so far, by reason.
    """

    def __init__(self, lines: Iterable[str], file: str) -> None:
        self._lines = iter(lines)
        self._file = file
        self._head_lines = 0
        self.source = "a table"
        self.skipped: Counter[str] = Counter()

    def __iter__(self) -> Iterator[RawRow]:
        """Raises:
        InvalidFile: no such columns, or a row with a value that is none.
        """
        head = ""
        while not head.strip() and (line := next(self._lines, None)) is not None:
            head, self._head_lines = line, self._head_lines + 1
        delimiter = max(_DELIMITERS, key=head.count)
        try:
            names = [name.strip() for name in next(csv.reader([head], delimiter=delimiter), [])]
        except csv.Error as error:  # a carriage return alone, a cell of 130,000 characters
            raise InvalidFile(self._file, f"line {self._head_lines}", str(error), _ALLOWED) from None
        folded = [name.casefold() for name in names]
        prompt, output = (_column(folded, known) for known in (PROMPT_NAMES, OUTPUT_NAMES))
        if prompt is None or output is None:
            raise InvalidFile(self._file, f"line {self._head_lines}", head.strip()[:200], _ALLOWED)
        self.source = _source(folded)
        return self._rows(names, prompt, output, _column(folded, TIME_NAMES), delimiter)

    def _rows(self, names: list[str], prompt: int, output: int, time: int | None, delimiter: str) -> Iterator[RawRow]:
        table = csv.reader(self._lines, delimiter=delimiter, strict=True)
        order = Ordered(self._file)
        milliseconds = time is not None and names[time].casefold().endswith("_ms")
        while True:
            try:
                cells = next(table, None)
            except csv.Error as error:
                raise InvalidFile(
                    self._file, f"line {table.line_num + self._head_lines}", str(error), "a table of cells"
                ) from None
            if cells is None:
                return
            if not any(cell.strip() for cell in cells):
                continue
            line = table.line_num + self._head_lines
            if len(cells) != len(names):
                raise InvalidFile(
                    self._file, f"line {line}", f"{len(cells)} cells", f"{len(names)}, as in the first row"
                )

            def where(column: int, line: int = line) -> str:
                return f"line {line}, column {names[column]}"

            at_s = None
            if time is not None:
                at_s = seconds_of(cells[time], file=self._file, where=where(time), milliseconds=milliseconds)
                order.check(at_s, where(time), cells[time])
            asked = tokens_of(cells[prompt], file=self._file, where=where(prompt))
            given = tokens_of(cells[output], file=self._file, where=where(output))
            if asked and given:
                yield RawRow(prompt_tokens=asked, output_tokens=given, at_s=at_s)
            else:
                self.skipped[NO_PROMPT if not asked else NO_OUTPUT] += 1


def _column(folded: list[str], known: tuple[str, ...]) -> int | None:
    """Position of the column whose name comes first among the known ones."""
    return next((folded.index(name) for name in known if name in folded), None)


def _source(folded: list[str]) -> str:
    if "contexttokens" in folded:
        return "a trace in Azure's columns"
    return "a trace in BurstGPT's columns" if "request tokens" in folded else "a table of lengths"
