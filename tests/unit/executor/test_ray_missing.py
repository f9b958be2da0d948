"""Without Ray, and without a cluster: one error that says what to do."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from autotune.errors import ClusterUnusable, ExitCode
from autotune.executor.ray_cluster import Cluster


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ClusterUnusable, match="not installed") as caught:
        Cluster.join(None)
    assert caught.value.exit_code is ExitCode.CLUSTER_UNUSABLE
    assert "vllm-autotune[ray]" in caught.value.hint


def test_a_ray_that_cannot_be_loaded_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ray.py").write_text("import a_part_of_ray_that_is_gone\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    with pytest.raises(ClusterUnusable, match="cannot be loaded: No module named 'a_part_of_ray_that_is_gone'"):
        Cluster.join(None)


def test_a_cluster_that_is_not_there_is_known_at_once() -> None:
    pytest.importorskip("ray", reason="the extra [ray] is not installed")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        port = taken.getsockname()[1]
        with pytest.raises(ClusterUnusable, match=f"127.0.0.1:{port} is not reached") as caught:
            Cluster.join(f"127.0.0.1:{port}")
    assert "ray start" in caught.value.hint


def test_where_no_cluster_is_the_error_names_no_option_of_rays_own(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the extra [ray] is not installed")

    def init(**_said: object) -> None:
        raise ConnectionError("Could not find any running Ray instance. Please set the `--address` flag")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterUnusable) as caught:
        Cluster.join(None)
    assert caught.value.message == "no Ray cluster is found here"
