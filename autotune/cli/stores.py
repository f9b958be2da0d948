"""The store of studies that are there already, for commands that look at them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autotune.errors import UnknownName
from autotune.store.places import Places
from autotune.store.repository import Store


@contextmanager
def opened(places: Places, study: str = "", *, kind: str = "study") -> Iterator[Store]:
    """The store of existing studies; never creates one.

    Args:
        study: the one that is wanted, for the message where there is nothing yet.
        kind: what else that name is of: `promotion`.

    Raises:
        UnknownName: there is no database yet, so there is no study.
    """
    if places.storage is None and not Path(places.database).exists():
        raise UnknownName(
            kind, study, (), hint=f"There is no database {places.database} yet; `autotune study` makes it."
        )
    with Store.open(places.database, create=False, busy_timeout_s=places.busy_timeout_s) as store:
        yield store
