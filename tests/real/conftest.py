"""The tier against a real vLLM. It runs where AUTOTUNE_TEST_VLLM_PYTHON names a Python that has vLLM installed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tiny_model import make_tiny_model


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
