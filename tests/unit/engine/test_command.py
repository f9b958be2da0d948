"""The server command: precedence, kinds, argv, and what is said when it cannot run."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.command import (
    CommandKind,
    choose_command,
    chooses_gpus,
    parse_command,
    question_words,
    resolve_command,
    server_argv,
    shown_argv,
)
from autotune.errors import ExitCode, InvalidOption, VllmCommandError

ENVIRON = {"AUTOTUNE_VLLM_COMMAND": "from-env serve"}


def test_argument_beats_environment_beats_file_beats_default() -> None:
    assert choose_command(argument="from-arg serve", environ=ENVIRON, study_file="f serve").words[0] == "from-arg"
    assert choose_command(environ=ENVIRON, study_file="from-file serve").words[0] == "from-env"
    assert choose_command(environ={}, study_file="from-file serve").words[0] == "from-file"
    assert choose_command(environ={"AUTOTUNE_VLLM_COMMAND": " "}).words == ("vllm", "serve")
    assert "AUTOTUNE_VLLM_COMMAND" in choose_command(environ=ENVIRON).source


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("vllm serve", CommandKind.SERVE, ("vllm", "serve")),
        ("/opt/x/bin/vllm", CommandKind.SERVE, ("/opt/x/bin/vllm", "serve")),
        ("python -m vllm.entrypoints.cli.main serve", CommandKind.SERVE, None),
        ("python -m vllm.entrypoints.openai.api_server", CommandKind.API_SERVER, None),
        ("'my python' -m vllm.entrypoints.openai.api_server", CommandKind.API_SERVER, None),
        ("docker run --gpus all -p {port}:8000 img --model {model}", CommandKind.TEMPLATE, None),
        ("autotune simulate-server", CommandKind.SERVE, ("autotune", "simulate-server")),
    ],
)
def test_kinds(text: str, kind: CommandKind, words: tuple[str, ...] | None) -> None:
    command = parse_command(text, source="test")
    assert command.kind is kind
    assert command.words == (words or tuple(shlex.split(text)))


@pytest.mark.parametrize("text", ["", "   ", "vllm 'serve", "python", "/usr/bin/python3"])
def test_what_is_no_command(text: str) -> None:
    with pytest.raises(VllmCommandError, match="--vllm-command") as caught:
        choose_command(argument=text)
    assert caught.value.exit_code is ExitCode.VLLM_COMMAND


def test_argv_of_serve_and_api_server() -> None:
    def argv(text: str) -> tuple[str, ...]:
        return server_argv(
            parse_command(text, source="test"),
            model="org/m",
            flags=("--max-num-seqs", "8"),
            host="127.0.0.1",
            port=81,
            extra=("--trust-remote-code",),
        )

    tail = ("--max-num-seqs", "8", "--host", "127.0.0.1", "--port", "81", "--trust-remote-code")
    assert argv("vllm serve") == ("vllm", "serve", "org/m", *tail)
    assert argv("py -m a.api_server") == ("py", "-m", "a.api_server", "--model", "org/m", *tail)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run -p {port}:8000 img --model {model}", "run -p 81:8000 img --model m --f 1 -x"),
        ("run {flags} --at {host}:{port} {model}", "run --f 1 -x --at h:81 m"),
        ("run {model}", "run m --f 1 -x --host h --port 81"),
        ("run {port}", "run 81 --model m --f 1 -x"),
        ("run --gpus device={gpus} -p {port} {model}", "run --gpus device=2,5 -p 81 m --f 1 -x"),
    ],
)
def test_templates(text: str, expected: str) -> None:
    command = parse_command(text, source="test")
    argv = server_argv(command, model="m", flags=("--f", "1"), host="h", port=81, extra=("-x",), gpus=(2, 5))
    assert argv == tuple(expected.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "docker run -p 127.0.0.1:{port}:8000 image --model {model}",
            "docker run -p 127.0.0.1:0:8000 image --model model",
        ),
        ("wrap {flags} --port {port} --model {model}", "wrap --port 0 --model model"),
        ("python -m vllm.entrypoints.openai.api_server", "python -m vllm.entrypoints.openai.api_server"),
    ],
)
def test_a_question_leaves_no_placeholder(text: str, expected: str) -> None:
    # docker: 'invalid hostPort: {port}'.
    assert shlex.join(question_words(parse_command(text, source="test"))) == expected


@pytest.mark.parametrize(
    ("text", "chooses"),
    [
        ("vllm serve", True),
        ("docker run --gpus all -p {port}:8000 image", False),
        ("docker run --gpus device={gpus} -p {port}:8000 image", True),
        ("docker run -e CUDA_VISIBLE_DEVICES --gpus all -p {port}:8000 image", True),
    ],
)
def test_who_can_be_given_gpus_of_its_own(text: str, chooses: bool) -> None:
    assert chooses_gpus(parse_command(text, source="test")) is chooses


def test_a_model_that_looks_like_a_placeholder_is_left_alone() -> None:
    command = parse_command("run {model} {port}", source="test")
    assert server_argv(command, model="{port}", flags=(), host="h", port=81) == ("run", "{port}", "81")


@pytest.mark.parametrize(
    "word", ["--port", "--port=9", "--host=0.0.0.0", "--model", "--uds=/tmp/x", "--data_parallel_rpc_port=1"]
)
def test_the_launch_owns_its_door(word: str) -> None:
    with pytest.raises(InvalidOption, match="--port"):
        server_argv(parse_command("vllm serve", source="t"), model="m", flags=(), host="h", port=1, extra=(word,))


def test_secrets_do_not_stay_in_an_argv() -> None:
    argv = ("vllm", "serve", "m", "--api-key", "one", "two", "--port", "1", "--api-key=three", "--x", "hf_" + "a" * 30)
    shown = shown_argv(argv)
    assert shown[:4] == argv[:4]
    assert shown[6:8] == ("--port", "1")
    text = " ".join(shown)
    assert not [secret for secret in ("one", "two", "three", "hf_a") if secret in text]
    assert shown_argv(shown) == shown
    assert shown_argv(("--api_key", "one", "--hf_token=two")) == ("--api_key", "<redacted>", "--hf_token=<redacted>")
    command = parse_command("docker run -e HF_TOKEN=hunter2 -p {port}:8000 image", source="t")
    assert "hunter2" not in command.text


def test_resolving(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    with pytest.raises(VllmCommandError, match="no executable 'vllm' in PATH"):
        resolve_command(parse_command("vllm serve", source="the default"), search_path=str(tmp_path))
    with pytest.raises(VllmCommandError, match="is not executable"):
        resolve_command(parse_command(f"{program} serve", source="x"))
    program.chmod(0o755)
    found = resolve_command(parse_command("vllm serve", source="the default"), search_path=str(tmp_path))
    assert found.words == (str(program), "serve")
    with pytest.raises(VllmCommandError, match=r"from --vllm-command.*does not exist"):
        resolve_command(parse_command("/nonexistent/vllm serve", source="--vllm-command"))


@given(st.lists(st.text(st.characters(exclude_characters="{}\0", exclude_categories=["Cs"]), min_size=1), min_size=2))
def test_quoting_survives(words: list[str]) -> None:
    """What a shell would pass as one word stays one word: no shell is involved, nothing is expanded."""
    assert parse_command(shlex.join(words), source="t").words[: len(words)] == tuple(words)
