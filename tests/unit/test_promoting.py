"""Putting a promotion into the history."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from autotune.errors import StorageError
from autotune.promote import Promotion
from autotune.review.promoting import stored_promotion
from autotune.store.study_record import PromotionRecord


class Full:
    """As much of a store as is asked, on a disk that is full."""

    def add_promotion(self, record: PromotionRecord) -> None:
        raise StorageError(f"{record.study}: no space", hint="Make room.")


def test_a_history_that_cannot_be_written_says_that_the_files_are_there() -> None:
    promotion = Promotion(
        name="prod", created_at=datetime(2026, 1, 1, tzinfo=UTC), study="s", trial=1, config_hash="h", model="m",
        vllm_version="0.32.0", targets=(), files=(), argv=(), simulated=False, simulated_allowed=False,
    )  # fmt: skip
    with pytest.raises(StorageError) as raised:
        stored_promotion(Full(), promotion, "/srv/deploy")
    assert raised.value.hint == (
        "Make room. The files are in /srv/deploy, and no history knows of them: the same command records them."
    )
