"""The tier against a real vLLM. It runs where AUTOTUNE_TEST_VLLM_PYTHON names a Python that has vLLM installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from imported import Imported
from tiny_model import make_tiny_model


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every program of theirs has a limit of its own; beside other tests a start of a minute takes many."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(0))


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


@pytest.fixture(scope="session")
def vllm_imported(vllm_python: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """Imported once for all tests of a process."""
    imported = Imported(vllm_python, tmp_path_factory.mktemp("imported"))
    yield imported
    imported.close()
