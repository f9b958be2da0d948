from __future__ import annotations

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from autotune.one_thread import in_one_thread


def _threads() -> list[int]:
    np.linalg.inv(np.eye(2))
    return [found["num_threads"] for found in threadpool_info() if found["user_api"] == "blas"]


def test_linear_algebra_has_one_thread_meanwhile_and_as_many_as_before_after() -> None:
    @in_one_thread
    def fails() -> None:
        raise ValueError("of its own")

    with threadpool_limits(limits=2, user_api="blas"):  # tests begin with one
        before = _threads()
        assert before
        assert set(before) == {2}
        assert in_one_thread(_threads)() == [1] * len(before)
        with pytest.raises(ValueError, match="of its own"):
            fails()
        assert _threads() == before
