"""The history of promotions as the store holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.promote import Entry
    from autotune.store.repository import Store


def history_of(store: Store) -> tuple[Entry, ...]:
    """Every promotion in the database, in its place.

    Raises:
        StorageError: one cannot be read.
    """
    from autotune.errors import StorageError
    from autotune.promote.history import entries

    try:
        return entries(store.all_promotions())
    except ValueError as error:
        raise StorageError(f"{store.location.label}: a promotion cannot be read: {error}") from None
