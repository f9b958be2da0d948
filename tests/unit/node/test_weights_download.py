"""Weights before the first trial, from a hub on loopback: once, only what is loaded, every trouble in a clear word."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from hub_stand_in import COMMIT, StandIn, serving

from autotune.errors import ExitCode, StudyFatal
from autotune.node.weights_download import NoWeights, WeightsMissing, WeightsOrder, fetch_weights

SECRET = "hf_abcdefghijklmnopqrstuvwxyz012345"
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}" * 10,
    "model-00001-of-00002.safetensors": os.urandom(300_000),
    "model-00002-of-00002.safetensors": os.urandom(200_000),
    "model.safetensors.index.json": b'{"weight_map": {"a": "model-00001-of-00002.safetensors", '
    b'"b": "model-00002-of-00002.safetensors"}}',
    "pytorch_model.bin": b"twice",
    "README.md": b"words",
}
LOADED = {name for name in FILES if name not in ("pytorch_model.bin", "README.md")}


def order(directory: Path, **others: object) -> WeightsOrder:
    return replace(WeightsOrder(model="acme/small", cache=directory / "hub", version=(0, 32, 0)), **others)


def environ(hub: StandIn | None, **others: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING", "TRANSFORMERS"))
    }
    url = hub.url if hub else f"http://127.0.0.1:{_closed_port()}"
    return (
        kept
        | {"HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": SECRET}
        | others
    )


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def snapshot(directory: Path) -> Path:
    return directory / "hub" / "models--acme--small" / "snapshots" / COMMIT


def test_what_is_loaded_is_downloaded_once_and_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    told: list[str] = []
    hub = StandIn(files=FILES, cut_off={"model-00001-of-00002.safetensors"})
    with serving(hub):
        fetch_weights(order(tmp_path), environ(hub), told.append)
        assert {path.name for path in snapshot(tmp_path).iterdir()} == LOADED
        assert all((snapshot(tmp_path) / name).read_bytes() == FILES[name] for name in LOADED)
        assert (tmp_path / "hub" / "models--acme--small" / "refs" / "main").read_text() == COMMIT
        assert set(hub.sent) == LOADED
        assert "5 files" in told[0]
        assert told[-1] == "the weights of acme/small are here"
        assert SECRET not in "".join(told)
        assert f"Bearer {SECRET}" in hub.tokens
        hub.sent.clear()
        told.clear()
        fetch_weights(order(tmp_path), environ(hub), told.append)
    assert hub.sent == []
    assert told == []
    # Without a network, and where it is forbidden, what is here does.
    fetch_weights(order(tmp_path), environ(None), told.append)
    assert "what is here is used" in told[0]
    fetch_weights(order(tmp_path), environ(None, HF_HUB_OFFLINE="1"), told.append)
    (snapshot(tmp_path) / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsMissing) as caught:
        fetch_weights(order(tmp_path), environ(None, HF_HUB_OFFLINE="1"), told.append)
    assert caught.value.why is NoWeights.OFFLINE


@pytest.mark.parametrize("load_format", ["dummy", "gguf", "runai_streamer", "sharded_state"])
def test_formats_that_read_no_such_files_ask_nobody(tmp_path: Path, load_format: str) -> None:
    fetch_weights(order(tmp_path, load_format=load_format), environ(None), pytest.fail)


def failed(directory: Path, env: dict[str, str], **others: object) -> WeightsMissing:
    with pytest.raises(WeightsMissing) as caught:
        fetch_weights(order(directory, **others), env, lambda _: None)
    assert isinstance(caught.value, StudyFatal)
    assert caught.value.exit_code is ExitCode.STUDY_FATAL
    assert SECRET not in str(caught.value)
    assert caught.value.hint
    return caught.value


def test_troubles_have_their_names(tmp_path: Path) -> None:
    with serving(StandIn(files=FILES, gated=True)) as hub:
        gated = failed(tmp_path, environ(hub))
    assert gated.why is NoWeights.GATED
    assert "HF_TOKEN" in gated.hint
    with serving(StandIn(files=FILES)) as hub:
        assert failed(tmp_path, environ(hub), model="acme/none").why is NoWeights.UNKNOWN
    assert failed(tmp_path, environ(None)).why is NoWeights.NETWORK


def test_room_is_looked_at_before_anything_is_downloaded(tmp_path: Path) -> None:
    weights = "model-00001-of-00002.safetensors"
    with serving(StandIn(files=FILES, lies={weights: 1 << 60})) as hub:
        found = failed(tmp_path, environ(hub))
        assert hub.sent == []
    assert found.why is NoWeights.DISK
    assert "needed" in found.message
    assert "HF_HOME" in found.hint


def test_a_download_that_stands_still_is_given_up(tmp_path: Path) -> None:
    weights = "model-00001-of-00002.safetensors"
    with serving(StandIn(files=FILES, silent={weights})) as hub, pytest.raises(WeightsMissing) as caught:
        fetch_weights(order(tmp_path), environ(hub), lambda _: None, stall_s=3.0, tries=1)
    assert caught.value.why is NoWeights.STALLED
