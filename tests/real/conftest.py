"""The tier against a real vLLM. It runs where AUTOTUNE_TEST_VLLM_PYTHON names a Python that has vLLM installed.

A server's start keeps one core busy for most of a minute, so two workers (`-n 2`) take half of the time.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest
from tiny_model import make_tiny_model

HERE = Path(__file__).parent
LONGEST_FIRST = ("test_real_study.py", "test_real_compile_cache.py", "test_prompt_lengths.py", "test_real_doctor.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest module first: beside it another worker does all the others."""
    places = [at for at, item in enumerate(items) if item.path.parent == HERE]
    order = {name: at for at, name in enumerate(LONGEST_FIRST)}
    here = sorted((items[at] for at in places), key=lambda item: order.get(item.path.name, len(order)))
    for at, item in zip(places, here, strict=True):
        items[at] = item


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test marked `quiet` waits until other workers have ended theirs, and they wait for it."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    if run is None or item.path.parent != HERE or not os.environ.get("AUTOTUNE_TEST_VLLM_PYTHON"):
        return (yield)
    with Path(tempfile.gettempdir(), f"autotune-real-{run}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if item.get_closest_marker("quiet") else fcntl.LOCK_SH)
        return (yield)


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """The interpreter with vLLM; the tier is skipped as a whole where none is named."""
    python = os.environ.get("AUTOTUNE_TEST_VLLM_PYTHON")
    if not python:
        pytest.skip("AUTOTUNE_TEST_VLLM_PYTHON does not name a Python with vLLM")
    return python


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random-weight Llama of a few hundred kilobytes: config and tokenizer only."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")
