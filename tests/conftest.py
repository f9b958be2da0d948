"""What the process tests share: a look at /proc that does not go through the code under test."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before NumPy is imported: workers, one a core, whose matrices are multiplied by a thread a core wait for each other.
# The program limits itself where it is whole (`one_thread.py`); tests call what is inside.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# An example that a busy machine held up is no failure: what a property costs is measured elsewhere.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")

HANG_S = 120.0
"""What is waited for at most where something is sure to come: reached by what hangs, and by nothing that is slow."""


def pytest_configure() -> None:
    """Started in the background (`&`, nohup) the tests would hand an ignored Ctrl-C on to every program they start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Ports that tests lease concern nobody but tests; one folder for all workers, which share the machine.
    os.environ.setdefault(
        "AUTOTUNE_LEASE_DIR", str(Path(tempfile.gettempdir()) / f"autotune-test-leases-{os.getuid()}")
    )


# In a worker coverage would be started three times, and `no_cover` end one of them only: by itself, as in any
# subprocess, and by pytest-cov as in a master and as in a worker. The last is the one whose data is taken.


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    covering = session.config.pluginmanager.getplugin("_cov")
    if hasattr(session.config, "workerinput") and covering and covering.cov_controller:
        covering.cov_controller.cov.stop()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """`no_cover` leaves the fixtures that a test is the first to need out as well."""
    covering = item.config.pluginmanager.getplugin("_cov")
    if item.get_closest_marker("no_cover") is None or not covering or not covering.cov_controller:
        return (yield)
    covering.cov_controller.pause()
    try:
        return (yield)
    finally:
        covering.cov_controller.resume()


def _carrying(marker: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"AUTOTUNE_MARKER={marker}".encode() in environ.split(b"\0") and state != "Z":
                found.append(int(entry.name))
    return sorted(found)


@pytest.fixture(scope="session")
def carrying() -> Callable[[str], list[int]]:
    """Live pids whose environment holds a marker."""
    return _carrying


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """An empty folder whose path leaves room for a socket's; what tests call temporary is too deep."""
    with tempfile.TemporaryDirectory(prefix="at-", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def no_shared_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers' folders are looked for in TMPDIR alone: /tmp has those of whatever servers run beside the tests."""
    monkeypatch.setattr("autotune.engine.private_folders.SHARED_PLACES", ())


@pytest.fixture(scope="session")
def nothing_left() -> Callable[..., bool]:
    """Whether within `within_s` no live process carries the marker any more."""

    def check(marker: str, within_s: float = HANG_S) -> bool:
        deadline = time.monotonic() + within_s
        while _carrying(marker):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    return check


@pytest.fixture(scope="session")
def alive() -> Callable[[int], bool]:
    """Whether a pid exists and is no zombie."""

    def check(pid: int) -> bool:
        try:
            os.kill(pid, 0)
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        except OSError:
            return False

    return check
