"""Ports of this machine for the servers of tests."""

from __future__ import annotations

import socket


def kept_port() -> socket.socket:
    """A port of the loopback that nobody else is given while this socket is open, and that a server may listen on."""
    kept = socket.socket()
    kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    kept.bind(("127.0.0.1", 0))
    return kept
