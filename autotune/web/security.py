"""What stands between a request and its route: where it was sent to, where it comes from, how often, and by whom.

The checks are pure functions over header values, so that each attack is a line of a test; the middleware calls them in
turn. docs/threat-model.md says what each is for.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from http import HTTPStatus

from autotune.web.problems import Refused, shown

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        *("script-src 'self'", "style-src 'self'", "img-src 'self' data:", "connect-src 'self'", "font-src 'self'"),
        *("form-action 'self'", "base-uri 'none'", "frame-ancestors 'none'"),
    )
)

HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer."""

OWN_HEADER = "X-Autotune"
"""No form and no `no-cors` request of another site can set it: a browser asks the service first, and gets no leave."""

_LOCAL = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})
_OWN_SITE = frozenset({"same-origin", "none"})


def host_name(host: str) -> str | None:
    """The name in a Host header or an Origin's authority, in small letters; None where it is none."""
    if not host or len(host) > 300 or any(c in host for c in "/\\@?# \t"):
        return None
    if host.startswith("["):
        name, bracket, rest = host[1:].partition("]")
        return name.lower() if bracket and (not rest or _is_port(rest)) else None
    name, colon, port = host.partition(":")
    return name.lower().rstrip(".") if name and (not colon or _is_port(f":{port}")) else None


def _is_port(text: str) -> bool:
    return text[0] == ":" and text[1:].isascii() and text[1:].isdecimal() and len(text) <= 6


def check_host(host: str, allowed: Collection[str]) -> None:
    """Refuse a name that somebody else's DNS may have led here.

    An address is no name, so no DNS can have been turned round behind a browser's back.

    Raises:
        Refused: 421.
    """
    name = host_name(host)
    if name is not None and (name in _LOCAL or name in allowed or _is_address(name)):
        return
    raise Refused(
        HTTPStatus.MISDIRECTED_REQUEST,
        "unknown-host",
        f"requests for the host {shown(host)} are not answered here",
        hint="Use the address, localhost, or a name that `autotune serve --allow-host` was given.",
    )


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_site(headers: Mapping[str, str], host: str, *, changes: bool) -> None:
    """Refuse what another site's page sends through a browser of ours.

    Args:
        headers: of the request.
        host: its Host header.
        changes: whether it would change something; reading is refused to other sites as well, since an event stream
            of theirs would take a reader's place.

    Raises:
        Refused: 403.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if site is not None and site not in _OWN_SITE:
        raise _foreign(f"a page of another site ({shown(site)})")
    if origin is not None and not _same(origin, host):
        raise _foreign(f"a page of {shown(origin)}")
    if not changes:
        return
    kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and OWN_HEADER not in headers:
        raise Refused(
            HTTPStatus.FORBIDDEN,
            "cross-site",
            f"a request that changes something needs `Content-Type: application/json` or the header {OWN_HEADER}",
            hint=f"curl: -H '{OWN_HEADER}: 1'",
        )


def _same(origin: str, host: str) -> bool:
    """Whether the origin's authority is the host that was asked; `null` and anything odd is not."""
    scheme, separator, authority = origin.partition("://")
    if not separator or scheme not in ("http", "https") or host_name(authority) is None:
        return False
    port = "443" if scheme == "https" else "80"
    return _with_port(authority, port) == _with_port(host, port)


def _with_port(authority: str, default: str) -> str:
    name = host_name(authority)
    _, colon, port = authority.rpartition(":")
    return f"{name}:{port if colon and port.isdecimal() and not authority.endswith(']') else default}"


def _foreign(who: str) -> Refused:
    return Refused(HTTPStatus.FORBIDDEN, "cross-site", f"the request was sent by {who}")


class Buckets:
    """A token bucket for each address; the oldest go when there are too many.

    Args:
        rate_rps: how quickly a bucket fills.
        burst: what it holds.
        most: addresses that are remembered.
    """

    def __init__(self, *, rate_rps: float, burst: float, most: int = 4096) -> None:
        self._rate, self._burst, self._most = rate_rps, burst, most
        self._found: dict[str, tuple[float, float]] = {}

    def wait_s(self, address: str, now: float) -> float:
        """Take one from an address's bucket; 0, or how long until there is one, and then nothing was taken."""
        missing = self.missing_s(address, now)
        level, then = self._found.pop(address, (self._burst, now))
        level = min(self._burst, level + (now - then) * self._rate)
        self._found[address] = (level if missing else level - 1, now)
        while len(self._found) > self._most:
            del self._found[next(iter(self._found))]
        return missing

    def missing_s(self, address: str, now: float) -> float:
        """How long until an address's bucket holds one; 0 where it does."""
        level, then = self._found.get(address, (self._burst, now))
        return max(0.0, (1 - min(self._burst, level + (now - then) * self._rate)) / self._rate)
