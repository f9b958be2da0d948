"""Whom simulated servers with the fault `asks:PATH` wait for: what a test interrupts cannot be over before."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path


class Door:
    """Lets every step pass, as long as `holds` does not say that it is to be held. It is asked again and again.

    Args:
        path: of a Unix socket, which is made; at most 107 bytes.
    """

    def __init__(self, path: Path) -> None:
        self.fault = f"asks:{path}"
        self.holds: Callable[[str], bool] = lambda _step: False
        self.held = 0
        self.passed: list[str] = []
        self._open, self._lock = True, threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen(256)
        threading.Thread(target=self._accept, daemon=True).start()

    def let_all(self) -> None:
        """Hold nobody any more."""
        self.holds = lambda _step: False

    def close(self) -> None:
        """Hold nobody, listen to nobody."""
        self._open = False
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while self._open:
            try:
                asking, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(asking,), daemon=True).start()

    def _answer(self, asking: socket.socket) -> None:
        with asking:
            step = asking.recv(16).decode().strip()
            with self._lock:
                self.held += 1
            while self._open and self.holds(step):
                time.sleep(0.02)
            with self._lock:
                self.held -= 1
                self.passed.append(step)
            try:
                asking.sendall(b".")
            except OSError:
                return  # it was ended while it waited
