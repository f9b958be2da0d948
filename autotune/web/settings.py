"""How the service is run: everything that `autotune serve` was told, in one value."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.store.places import Places
from autotune.web.policy import Policy

DEFAULT_HOST, DEFAULT_PORT = "127.0.0.1", 8321

SERVICE_FOLDER = ".service"
"""In the studies folder: queue, requests, what jobs printed. No study can have a name that begins with a dot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client, and all of them together, may ask of the service.

    Attributes:
        rate_rps, burst: requests of one address a second, and at once.
        logins_per_minute: tokens that one address may try in vain.
        readers: event streams that are open at once.
        queued: jobs that wait at once.
    """

    body_bytes: int = 64 * 1024
    rate_rps: float = 50.0
    burst: int = 200
    logins_per_minute: int = 10
    readers: int = 256
    queued: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """The service as asked for.

    Attributes:
        token_hashes: of the tokens that are taken, as `tokens.hashed` makes them; none: no token is asked for.
        allowed_hosts: names beside the loopback's and IP addresses that requests may be sent to.
        promotions_dir: below it each deployment's files are written; None: in the service's folder.
        vllm_command: the server command of every study and gate; None: as the environment says.
        secure_cookie: the page is reached by TLS only, ours or a proxy's.
        stop_s: how long studies may take to end when the service does.
        look_only: no request may change anything, and nothing is written: there is no queue.
    """

    places: Places
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    token_hashes: tuple[str, ...] = field(default=(), repr=False)
    allowed_hosts: tuple[str, ...] = ()
    policy: Policy = field(default_factory=Policy)
    promotions_dir: Path | None = None
    vllm_command: str | None = None
    secure_cookie: bool = False
    stop_s: float = 120.0
    look_only: bool = False
    limits: Limits = field(default_factory=Limits)

    @property
    def folder(self) -> Path:
        """Where the service keeps its own things."""
        return self.places.root / SERVICE_FOLDER

    @property
    def promotions(self) -> Path:
        """Where promoted files go."""
        return self.promotions_dir or self.folder / "promotions"


def token_path(places: Places) -> Path:
    """The token file where none is named."""
    return places.root / SERVICE_FOLDER / "token"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens there; a name counts only as itself, whatever it resolves to."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
