from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import AZURE, BURSTGPT, MOONCAKE, SHAREGPT, request_line

from autotune.errors import InvalidFile
from autotune.load import trace_files
from autotune.load.prompts import Conversation
from autotune.load.trace_files import is_trace_name, read_trace, trace_stem
from autotune.load.traces import Trace, burstiness


def written(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def read(folder: Path, name: str, text: str | bytes, **options: object) -> Trace:
    return read_trace(written(folder, name, text), **options)[0]


def rows(trace: Trace) -> list[tuple[float | None, int, int]]:
    return [(row.at_s, row.prompt_tokens, row.output_tokens) for row in trace.rows]


def test_burstgpt(tmp_path: Path) -> None:
    trace = read(tmp_path, "b.csv", BURSTGPT)
    assert rows(trace) == [(0.0, 472, 18), (40.0, 1087, 230), (113.0, 417, 276)]
    assert trace.skipped == (("no output (a failed request)", 1),)
    assert trace.timed
    assert not trace.cut


def test_azure(tmp_path: Path) -> None:
    trace = read(tmp_path, "a.csv", AZURE)
    assert [row.prompt_tokens for row in trace.rows] == [4808, 3180, 110]
    assert [row.at_s for row in trace.rows] == pytest.approx([0.0, 0.052, 1.052], abs=1e-5)


@pytest.mark.parametrize(
    "form",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace("ChatGPT", '"Chat,GPT"'),
        lambda text: "\n" + text.rstrip(),
        lambda text: text.replace("Request tokens", '"request TOKENS "'),
    ],
)
def test_tables_as_programs_write_them(tmp_path: Path, form: object) -> None:
    assert rows(read(tmp_path, "b.csv", form(BURSTGPT))) == rows(read(tmp_path, "c.csv", BURSTGPT))


def test_packed(tmp_path: Path) -> None:
    assert rows(read(tmp_path, "b.csv.gz", gzip.compress(BURSTGPT.encode()))) == rows(read(tmp_path, "b.csv", BURSTGPT))


def test_mooncake_shares_what_several_rows_have(tmp_path: Path) -> None:
    trace = read(tmp_path, "m.jsonl", MOONCAKE)
    assert [row.at_s for row in trace.rows] == [0.0, 3.0, 3.0, 9.0]  # milliseconds in the file
    # Block 7 has three users and 8 has two: two spans of a block each; 9, 30, 40 and 50 are a row's own.
    assert [[span.tokens for span in row.shared] for row in trace.rows] == [[512, 512], [512, 512], [512], []]
    first, second, third, _ = (row.shared for row in trace.rows)
    assert first == second
    assert third[0] == first[0]


def test_mooncake_partial_last_block_counts(tmp_path: Path) -> None:
    line = json.dumps({"timestamp": 1, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]})
    trace = read(tmp_path, "m.jsonl", f"{line}\n{line}")
    assert [span.tokens for span in trace.rows[0].shared] == [600]  # 512 and the remaining 88
    assert not trace.timed  # both came at once


def test_conversations(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    file.write_text(SHAREGPT)
    trace, texts = read_trace(file, count_tokens=lambda text: len(text.split()))
    # Words: 2; then 2 + 5 + 2 before the second answer of 2; then 1 and 2.
    assert rows(trace) == [(None, 2, 5), (None, 9, 2), (None, 1, 2)]
    assert [row.after for row in trace.rows] == [None, 0, None]
    assert trace.conversations == ((0, 1), (2,))
    assert not trace.ordered
    assert not trace.estimated
    assert texts[0] == "first question"
    assert isinstance(texts[1], Conversation)
    assert [message.role for message in texts[1].messages] == ["user", "assistant", "user"]
    assert [row.text_index for row in trace.rows] == [0, 1, 2]
    assert trace.rows[1].shared[0] == trace.rows[0].shared[0]  # the first question, in both prompts


def test_a_long_array_on_one_line_and_many_lines_read_alike(tmp_path: Path) -> None:
    talks = json.loads(SHAREGPT) * 400
    one = read(tmp_path, "a.json", json.dumps(talks))
    many = read(tmp_path, "b.json", "\ufeff \n" + json.dumps(talks, indent=3))
    assert one.rows == many.rows
    assert len(one.rows) == 1200


def test_a_request_log(tmp_path: Path) -> None:
    system = "You are a helpful machine."
    text = "\n".join(
        [
            request_line(100.0, system, "question one", tokens=(40, 12)),
            request_line(101.5, system, "question two", tokens=(41, 13)),
            request_line(103.0, system, "question one", "its answer", "and then", tokens=(60, 7)),
        ]
    )
    trace = read(tmp_path, "log.jsonl", text)
    assert rows(trace) == [(0.0, 40, 12), (1.5, 41, 13), (3.0, 60, 7)]
    assert [row.after for row in trace.rows] == [None, None, 0]
    assert trace.ordered
    assert not trace.estimated  # usage said it
    shared = [[span.content for span in row.shared] for row in trace.rows]
    assert shared[0][0] == shared[1][0] == shared[2][0]
    assert shared[0][1] == shared[2][1]
    assert len(shared[1]) == 1


@pytest.mark.parametrize(
    ("record", "prompt", "output"),
    [
        ({"prompt": "a" * 400, "max_tokens": 9}, 100, 9),
        ({"body": {"messages": [{"role": "user", "content": "a" * 40}], "max_completion_tokens": 3}}, 10, 3),
        ({"messages": [{"role": "user", "content": "a" * 40}, {"role": "assistant", "content": "b" * 20}]}, 10, 5),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a" * 8}]}], "max_tokens": 2}, 2, 2),
        ({"prompt": "한글" * 20, "response": {"choices": [{"text": "a" * 12}]}}, 30, 3),  # 120 bytes
        ({"prompt_tokens": 17, "completion_tokens": 4}, 17, 4),
        ({"usage": {"prompt_tokens": 18, "completion_tokens": 5}}, 18, 5),
        ({"response": {"status_code": 200, "body": {"usage": {"prompt_tokens": 19, "completion_tokens": 6}}}}, 19, 6),
    ],
)
def test_forms_of_requests(tmp_path: Path, record: dict[str, object], prompt: int, output: int) -> None:
    trace = read(tmp_path, "x.jsonl", json.dumps(record))
    assert rows(trace) == [(None, prompt, output)]
    assert trace.estimated is ("messages" in str(record) or "prompt'" in str(record))


def test_pictures_are_left_out_and_counted(tmp_path: Path) -> None:
    picture = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "max_tokens": 2}
    trace = read(tmp_path, "x.jsonl", f"{json.dumps(picture)}\n{json.dumps({'prompt': 'hello', 'max_tokens': 2})}")
    assert len(trace.rows) == 1
    assert trace.skipped == (("parts that are no text (pictures, sound)", 1),)


@pytest.mark.parametrize("end", ['{"prompt_tok', '{"prompt_tokens": 5, "completion_tokens": 3', '"caf\u00e9'])
def test_a_last_line_that_was_being_written_is_left_out_and_counted(tmp_path: Path, end: str) -> None:
    whole = '{"prompt_tokens": 5, "completion_tokens": 3}\n'
    torn = end.encode()[:-1] if end.endswith("\u00e9") else end.encode()
    trace = read(tmp_path, "l.jsonl", whole.encode() + torn)
    assert rows(trace) == [(None, 5, 3)]
    assert trace.skipped == (("a last line that was still being written", 1),)
    for wrong in (torn, whole.encode() + torn + b"\n", torn + b"\n" + whole.encode()):  # alone, ended, in between
        with pytest.raises(InvalidFile):
            read(tmp_path, "l.jsonl", wrong)


def test_only_so_many_rows_are_read(tmp_path: Path) -> None:
    trace = read(tmp_path, "b.csv", BURSTGPT, max_rows=2)
    assert (len(trace.rows), trace.cut) == (2, True)
    trace, texts = read_trace(written(tmp_path, "s.json", SHAREGPT), max_rows=1)
    assert (len(trace.rows), len(texts), trace.cut) == (1, 1, True)


def test_a_conversation_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt of each answer is all that was said before it: 1, 3, 5, .. pieces, together the square of answers."""
    monkeypatch.setattr(trace_files, "MAX_BLOCKS", 10_000)
    messages = [{"from": ("human", "gpt")[n % 2], "value": f"w{n}"} for n in range(1_000)]
    trace = read(tmp_path, "s.json", json.dumps([{"conversations": messages}]))
    assert (len(trace.rows), trace.cut) == (101, True)


def test_blank_lines_without_end_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace_files, "MAX_LINES", 100)
    trace = read(tmp_path, "x.csv", HEAD + "1,2,3\n" + "\n" * 100 + "2,3,4\n")
    assert (len(trace.rows), trace.cut) == (1, True)


def test_the_digest_follows_the_content(tmp_path: Path) -> None:
    digests = {
        read(tmp_path, "a.jsonl", text).digest
        for text in (
            MOONCAKE,
            MOONCAKE.replace("1300", "1301"),
            MOONCAKE.replace("[7, 8, 30]", "[7, 80, 30]"),
            json.dumps({"prompt": "hello there", "max_tokens": 3}),
            json.dumps({"prompt": "hello where", "max_tokens": 3}),
        )
    }
    assert len(digests) == 5


HEAD = "Timestamp,Request tokens,Response tokens\n"


@pytest.mark.parametrize(
    ("name", "text", "key", "said"),
    [
        ("x.csv", "", "line 0", "ContextTokens"),
        ("x.csv", "1,2,3\n", "line 1", "ContextTokens"),
        ("x.csv", HEAD.replace("\n", "\r") + "1,2,3\r", "line 1", "new-line character"),
        ("x.csv", HEAD.strip() + "," + "a" * 200_000 + "\n1,2,3,4\n", "line 1", "field limit"),
        ("x.csv", HEAD + "1,2\n", "line 2", "3, as in the first row"),
        ("x.csv", HEAD + "1,-2,3\n", "line 2, column Request tokens", "from 0 to"),
        ("x.csv", HEAD + "1,2,9" + "9" * 30 + "\n", "line 2, column Response tokens", "from 0 to"),
        ("x.csv", HEAD + "1,2,nan\n", "line 2, column Response tokens", "whole number"),
        ("x.csv", HEAD + "1,2,2.5\n", "line 2, column Response tokens", "whole number"),
        ("x.csv", HEAD + "soon,2,3\n", "line 2, column Timestamp", "date and time"),
        ("x.csv", HEAD + "inf,2,3\n", "line 2, column Timestamp", "date and time"),
        ("x.csv", HEAD + "\n5,2,3\n4,2,3\n", "line 4, column Timestamp", "no earlier"),
        ("x.csv", HEAD + '5,"2,3\n', "line 2", "a table of cells"),
        ("x.csv", HEAD + "1,0,3\n2,3,0\n", "", "at least one request"),
        ("x.csv", b"\xff\xfe\x00", "line 1", "UTF-8"),
        ("x.jsonl", "", "", "at least one request"),
        ("x.jsonl", "{}", "line 1", "messages"),
        ("x.jsonl", "7", "line 1", "an object"),
        ("x.jsonl", '{"a": ', "line 1, column 7", "JSON"),
        ("x.jsonl", '{"input_length": NaN, "output_length": 1}', "line 1", "finite"),
        ("x.jsonl", '{"input_length": true, "output_length": 1}', "line 1, input_length", "whole number"),
        ("x.jsonl", '{"input_length": 5, "output_length": 1, "hash_ids": 3}', "line 1, hash_ids", "list"),
        ("x.jsonl", '{"input_length": 5, "output_length": 1, "hash_ids": [1, 2]}', "line 1, hash_ids", "at most 1"),
        ("x.jsonl", '{"prompt": "hi"}', "line 1", "max_tokens"),
        ("x.jsonl", '{"prompt": 4, "max_tokens": 1}', "line 1, prompt", "a text"),
        ("x.jsonl", '{"messages": {}, "max_tokens": 1}', "line 1, messages", "list"),
        ("x.jsonl", '{"messages": [{"role": "boss", "content": ""}]}', "line 1, messages.0.role", "assistant"),
        ("x.jsonl", "[" * 100_000, "element 0", "nested too deeply"),
        ("x.jsonl", '{"a":' * 100_000, "line 1", "nested too deeply"),
        ("x.json", '[{"prompt": "a", "max_tokens": 1}', "element 1", "`]`"),
        ("x.json", '[{"prompt": "a", "max_tokens": 1}, {"prom', "element 1, column 2", "JSON"),
        ("x.json", "[3]", "element 0", "an object"),
        ("x.csv.gz", b"no gzip", "", "readable"),
        ("x.csv.gz", gzip.compress(BURSTGPT.encode())[:-9], "", "readable"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(
    tmp_path: Path, name: str, text: str | bytes, key: str, said: str
) -> None:
    with pytest.raises(InvalidFile) as caught:
        read(tmp_path, name, text)
    assert caught.value.key == key
    assert said in str(caught.value)
    assert len(str(caught.value)) < 1500


def test_times_in_some_rows_only(tmp_path: Path) -> None:
    lines = [{"timestamp": 1, "input_length": 1, "output_length": 1}, {"input_length": 1, "output_length": 1}]
    with pytest.raises(InvalidFile, match="every row or in none"):
        read(tmp_path, "x.jsonl", "\n".join(map(json.dumps, lines)))


def test_no_regularwritten(tmp_path: Path) -> None:
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InvalidFile, match="a folder"):
        read_trace(tmp_path / "d.csv")
    with pytest.raises(InvalidFile, match="No such file"):
        read_trace(tmp_path / "gone.csv")


def test_names() -> None:
    assert all(is_trace_name(name) for name in ("a.csv", "a.JSONL", "a.json.gz", "/x/y.ndjson"))
    assert not any(is_trace_name(name) for name in ("chat", "a.yaml", "a.gz", "csv"))
    assert [trace_stem(name) for name in ("a.csv", "b.c.jsonl.gz", ".csv")] == ["a", "b.c", ".csv"]


def test_burstiness() -> None:
    assert burstiness([0, 1, 2, 3]) == 0
    # Gaps 0, 0, 3: mean 1, deviation sqrt((1 + 1 + 4) / 3).
    assert burstiness([0, 0, 0, 3]) == pytest.approx(2**0.5)
    assert burstiness([0, 1]) is None
    assert burstiness([5, 5, 5]) is None


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["x.csv", "x.jsonl", "x.json", "x.csv.gz"]))
def test_any_bytes_are_refused_politely(tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str) -> None:
    with pytest.raises(InvalidFile):
        read(tmp_path_factory.getbasetemp(), name, content)


KEYS = [
    *("messages", "prompt", "role", "content", "response", "usage", "prompt_tokens", "completion_tokens"),
    *("conversations", "from", "value", "timestamp", "input_length", "output_length", "hash_ids", "choices"),
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "gpt", "some text", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@settings(deadline=None)
@given(JSON)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, value: object) -> None:
    try:
        trace = read(tmp_path_factory.getbasetemp(), "any.jsonl", json.dumps(value))
    except InvalidFile:
        return
    assert all(row.prompt_tokens > 0 and row.output_tokens > 0 for row in trace.rows)
