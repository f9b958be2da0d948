"""Weights are downloaded once, before the first trial: a server that downloads would use up its start deadline.

The download runs in a process of its own, which can be stopped at any moment and whose progress is seen on the disk;
what it had is kept, and the next one goes on from there.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from autotune.errors import AutotuneError, StudyFatal
from autotune.node.weights_files import LOADED_BY_VLLM, NO_WEIGHTS
from autotune.units import format_bytes

STALL_S = 120.0
"""Without a byte more on the disk for this long, a download has stopped."""

ASK_TIMEOUT_S = 20.0
MOST_TRIES = 5
"""Of a download that broke off, as long as each got further than the one before."""

TELL_EVERY_S = 10.0
_POLL_S = 0.5
_END_S = 10.0
_TRUE = {"1", "ON", "YES", "TRUE"}


class NoWeights(StrEnum):
    """Why weights are not there."""

    GATED = "gated"
    UNKNOWN = "unknown"
    OFFLINE = "offline"
    NETWORK = "network"
    STALLED = "stalled"
    DISK = "disk"


_BROKE_OFF = frozenset({NoWeights.NETWORK, NoWeights.STALLED})


class WeightsMissing(StudyFatal):
    """The weights of a model cannot be had; `why` says which kind of trouble. The study can go on later."""

    def __init__(self, model: str, why: NoWeights, message: str, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.model, self.why = model, why


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsOrder:
    """What is to be on this machine.

    Attributes:
        model: a hub id.
        cache: the folder that the server looks in (`hub_cache`, or --download-dir).
        load_format: as the server has it; of one that reads no plain files nothing is downloaded.
        version: of vLLM; None where it is not known.
    """

    model: str
    cache: Path
    revision: str | None = None
    load_format: str = "auto"
    version: tuple[int, ...] | None = None


def fetch_weights(
    order: WeightsOrder,
    environ: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    stall_s: float = STALL_S,
    tries: int = MOST_TRIES,
) -> None:
    """Make sure that the files a server loads are in the cache; `tell` hears of progress.

    A hub that cannot be asked is no trouble where weights are there already.

    Raises:
        WeightsMissing: they cannot be had.
    """
    if order.load_format not in LOADED_BY_VLLM or order.load_format == NO_WEIGHTS:
        return
    if any(environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")):
        if not _has_weights(order):
            raise _missing(order, NoWeights.OFFLINE, "", None)
        return
    tried = 0
    while (failed := _Download(order, environ, tell, stall_s).run()) is not None:
        tried += 1
        why = NoWeights(failed["why"])
        if why in _BROKE_OFF and failed["grew"] and tried < tries:
            tell(f"the download of {order.model} broke off and goes on")
        elif why in _BROKE_OFF and not failed["listed"] and _has_weights(order):
            tell(f"the hub cannot be asked whether {order.model} has changed; what is here is used")
            return
        else:
            raise _missing(order, why, str(failed.get("text") or ""), failed)


class _Download:
    """One run of the child."""

    def __init__(
        self, order: WeightsOrder, environ: Mapping[str, str], tell: Callable[[str], None], stall_s: float
    ) -> None:
        self._order, self._environ, self._tell, self._stall_s = order, environ, tell, stall_s
        self._events: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None

    def run(self) -> dict[str, Any] | None:
        """The event of a failure; None when everything is there."""
        environ = dict(self._environ) | {"HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        with subprocess.Popen(
            [sys.executable, "-m", "autotune.node.weights_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        ) as child:
            try:
                return self._follow(child)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                if self._reader:  # it comes to the end now, and must have before the pipe is closed
                    self._reader.join(_END_S)

    def _follow(self, child: subprocess.Popen[bytes]) -> dict[str, Any] | None:
        assert child.stdin is not None  # both are pipes
        assert child.stdout is not None
        order = self._order
        words = {
            "model": order.model,
            "revision": order.revision,
            "cache": str(order.cache),
            "load_format": order.load_format,
            "version": order.version,
            "timeout_s": ASK_TIMEOUT_S,
        }
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(json.dumps(words).encode() + b"\n")
            child.stdin.flush()
        self._reader = threading.Thread(target=self._read, args=(child.stdout,), daemon=True)
        self._reader.start()
        progress = _Progress(_on_disk(order), time.monotonic())
        listed: dict[str, Any] | None = None
        while True:
            try:
                event = self._events.get(timeout=_POLL_S)
            except queue.Empty:
                event = {"event": "nothing"}
            if event is None or event["event"] == "failed":
                found = event or {"why": NoWeights.NETWORK, "text": "the download ended without a word"}
                return {**found, "listed": listed is not None, "grew": progress.grew}
            if event["event"] == "done":
                if listed and listed["missing"]:
                    self._tell(f"the weights of {order.model} are here")
                return None
            if event["event"] == "found":
                listed = event
                if event["missing"]:
                    size = format_bytes(event["missing_bytes"])
                    self._tell(f"downloading {order.model}: {event['missing']} files, {size}, into {order.cache}")
            now = time.monotonic()
            progress.see(_on_disk(order), now)
            if now - progress.moved_at > self._stall_s:
                text = f"nothing arrived for {self._stall_s:.0f} s"
                return {"why": NoWeights.STALLED, "text": text, "listed": listed is not None, "grew": progress.grew}
            if listed and (line := progress.line(now, listed["missing_bytes"])):
                self._tell(f"downloading {order.model}: {line}")

    def _read(self, stream: Any) -> None:
        for line in stream:
            with contextlib.suppress(ValueError):
                self._events.put(json.loads(line))
        self._events.put(None)


class _Progress:
    """Bytes on the disk over time."""

    def __init__(self, bytes_: int, now: float) -> None:
        self._first, self._last, self._begun, self._told_at = bytes_, bytes_, now, now
        self.moved_at = now

    @property
    def grew(self) -> bool:
        return self._last > self._first

    def see(self, bytes_: int, now: float) -> None:
        if bytes_ != self._last:
            self._last, self.moved_at = bytes_, now

    def line(self, now: float, wanted: int) -> str | None:
        """Something to tell, now and then."""
        if now - self._told_at < TELL_EVERY_S:
            return None
        self._told_at = now
        had = min(self._last - self._first, wanted)
        speed = had / max(now - self._begun, 1e-9)
        left = f", {(wanted - had) / speed / 60:.0f} min left" if speed > 0 else ""
        return f"{format_bytes(had)} of {format_bytes(wanted)}, {format_bytes(round(speed))}/s{left}"


def _folder(order: WeightsOrder) -> Path:
    return order.cache / f"models--{order.model.replace('/', '--')}"


def _on_disk(order: WeightsOrder) -> int:
    """Bytes that were written, of finished files and begun ones: blocks, for some are written with holes."""
    total = 0
    with contextlib.suppress(OSError):
        for path in (_folder(order) / "blobs").iterdir():
            with contextlib.suppress(OSError):
                total += path.stat().st_blocks * 512
    return total


def _has_weights(order: WeightsOrder) -> bool:
    """Whether the snapshot that a server without a network takes holds weights."""
    folder = _folder(order)
    revision = order.revision or "main"
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):  # an index that is none
        reference = folder / "refs" / revision
        commit = reference.read_text(encoding="utf-8").strip() if reference.is_file() else revision
        snapshot = folder / "snapshots" / commit
        index = snapshot / "model.safetensors.index.json"
        if index.is_file():
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            return all((snapshot / name).is_file() for name in names)
        return any(path.is_file() for kind in (".safetensors", ".bin", ".pt") for path in snapshot.glob(f"*{kind}"))
    return False


def _missing(order: WeightsOrder, why: NoWeights, text: str, event: Mapping[str, Any] | None) -> AutotuneError:
    model = order.model
    again = "The same command goes on afterwards."
    match why:
        case NoWeights.GATED:
            message = f"the hub does not give {model} to this user: it is gated, or the token is not accepted"
            hint = f"Accept its terms on its page, and set HF_TOKEN to a token of yours. {again}"
        case NoWeights.UNKNOWN:
            where = f" at revision {order.revision}" if order.revision else ""
            message = f"the hub has no model {model}{where}, or it is private"
            hint = "Check --model; for a private one set HF_TOKEN to a token that may read it."
        case NoWeights.OFFLINE:
            message = f"the weights of {model} are not in {order.cache}, and HF_HUB_OFFLINE forbids to download them"
            hint = f"Unset it, or put the weights there; --load-format dummy needs none. {again}"
        case NoWeights.DISK:
            sizes = event or {}
            needed, free = sizes.get("needed_bytes"), sizes.get("free_bytes")
            seen = f": {format_bytes(free)} free, {format_bytes(needed)} needed" if needed and free is not None else ""
            message = f"no room for the weights of {model} at {order.cache}{seen}"
            hint = f"Free room, or let HF_HOME (or HF_HUB_CACHE) name a folder on a larger disk. {again}"
        case NoWeights.NETWORK | NoWeights.STALLED:
            message = f"the weights of {model} cannot be downloaded" + (f": {text}" if text else "")
            hint = f"Check the network, a proxy (HTTPS_PROXY) or a mirror (HF_ENDPOINT); what arrived is kept. {again}"
    return WeightsMissing(model, why, message, hint=hint)
