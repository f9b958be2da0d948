import pytest

from autotune.engine.server_http import ModelCard


@pytest.mark.parametrize(("told", "kept"), [(4096, 4096), (0, None), (-5, None), (None, None)])
def test_a_length_that_is_none_is_not_taken(told: int | None, kept: int | None) -> None:
    assert ModelCard.model_validate({"id": "m", "max_model_len": told}).max_model_len == kept
