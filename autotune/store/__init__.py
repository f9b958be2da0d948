"""What studies leave behind, on disk the moment it happens."""

from autotune.store.repository import Store
from autotune.store.study_record import (
    AttemptRecord,
    AttemptState,
    PhaseChange,
    PromotionRecord,
    Rejection,
    StudyRecord,
    StudySpec,
    StudyState,
)

__all__ = [
    "Store",
    "StudySpec",
    "StudyRecord",
    "StudyState",
    "AttemptRecord",
    "AttemptState",
    "PhaseChange",
    "Rejection",
    "PromotionRecord",
]
