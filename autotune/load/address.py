"""Where load may go. Pure."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from autotune.errors import InvalidOption


def check_url(base_url: str, *, allow_remote: bool) -> str:
    """The base URL without its trailing slash, if load may go there: this machine, unless `allow_remote`.

    Raises:
        InvalidOption: not http(s), no host, or another machine.
    """
    try:
        parts = urlsplit(base_url)
        port = parts.port
    except ValueError:  # brackets that do not close, a port that is no number
        parts, port = urlsplit(""), None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        raise InvalidOption("--url", base_url, "a URL such as http://127.0.0.1:8000")
    if not allow_remote and not is_loopback(parts.hostname):
        raise InvalidOption(
            "--url",
            base_url,
            "a server on this machine (localhost, 127.0.0.1, ::1)",
            hint="A saturating load on somebody else's server must be allowed explicitly.",
        )
    return base_url.rstrip("/")


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_this_machine(base_url: str) -> bool:
    """Whether a URL leads to this machine."""
    return is_loopback(urlsplit(base_url).hostname or "")
