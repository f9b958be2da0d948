"""What a deployment may be called. Pure.

The name goes into file names, labels of a cluster, trailers of commits, paths of the service and commands to paste, so
that it is held to what all of them take as it is. Names in the history that are older than this rule stay reachable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from autotune.errors import InvalidOption
from autotune.promote.quoting import slug

DEPLOYMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""That of studies, whose name is a deployment's where it is given none."""

OPTION = "--name"
ALLOWED = "1-64 letters, digits, '.', '_' and '-' of ASCII, beginning with a letter or digit"


def check_deployment_name(name: str) -> None:
    """Refuse what is no name.

    Raises:
        InvalidOption: it is not.
    """
    if not DEPLOYMENT_NAME.fullmatch(name):
        raise InvalidOption(OPTION, name, ALLOWED)


def check_unlike_others(name: str, others: Iterable[str]) -> None:
    """Refuse a name whose files, containers and cluster objects would be another deployment's.

    Those are in lower case and have dashes alone: `Prod.Chat` would replace the pods of `prod-chat`.

    Args:
        others: names of the history; `name` itself may be among them.

    Raises:
        InvalidOption: one of them is written alike.
    """
    written = slug(name)
    alike = next((other for other in others if other != name and slug(other) == written), None)
    if alike is not None:
        raise InvalidOption(
            OPTION,
            name,
            f"a name that is written unlike {alike!r}: files and cluster objects of both would be called {written!r}",
        )
