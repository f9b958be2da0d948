"""What one GPU does at one moment, and how NVML is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import ModuleType
from typing import Any, TypeVar

Answer = TypeVar("Answer")

_EVERY_LINK = 0xFFFFFFFF
"""NVML's scope for a counter of all NVLinks together."""


class ClockLimit(StrEnum):
    """Why clocks are below what the card could do; idling and settings of an administrator are no such reason."""

    POWER_CAP = "power_cap"
    HEAT = "heat"
    POWER_BRAKE = "power_brake"
    HARDWARE = "hardware"


_LIMITS = (
    (0x04, ClockLimit.POWER_CAP),
    (0x08, ClockLimit.HARDWARE),
    (0x20, ClockLimit.HEAT),
    (0x40, ClockLimit.HEAT),
    (0x80, ClockLimit.POWER_BRAKE),
)
"""Bits of `nvmlClocksEventReasons` (nvml.h): software power cap, hardware slowdown, software and hardware thermal
slowdown, hardware power brake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """One GPU now; None where the card, the driver or the binding does not say.

    Attributes:
        busy_share: share of the driver's last sample period (a sixth of a second to a second) in which a kernel ran.
        memory_busy_share: the same of reads and writes of GPU memory.
        limits: what holds the clocks down; empty for nothing.
        pcie_tx_bytes_per_s: over the 20 ms that the driver takes to answer.
        nvlink_tx_bytes: counted since the driver was loaded, all links, payload only; differences count.
    """

    busy_share: float | None = None
    memory_busy_share: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_clock_mhz: int | None = None
    sm_clock_limit_mhz: int | None = None
    limits: frozenset[ClockLimit] | None = None
    memory_used_bytes: int | None = None
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes: int | None = None
    nvlink_rx_bytes: int | None = None


def read_load(nvml: ModuleType | Any, handle: Any, memory_used_bytes: int) -> GpuLoad:
    """Ask NVML for everything it can tell of one GPU. Takes 40 ms: each direction of PCIe is watched for 20.

    Raises:
        nvml.NVMLError: the driver stopped answering; a question that it does not know is no such error.
    """
    use = _asked(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    reasons = _asked(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    if reasons is None:  # the name before driver 535
        reasons = _asked(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    sent, received = _nvlink_bytes(nvml, handle)
    return GpuLoad(
        busy_share=None if use is None else use.gpu / 100,
        memory_busy_share=None if use is None else use.memory / 100,
        power_w=_per_thousand(_asked(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))),
        power_limit_w=_per_thousand(_asked(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))),
        sm_clock_mhz=_asked(nvml, lambda: int(nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
        sm_clock_limit_mhz=_asked(nvml, lambda: int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))),
        limits=None if reasons is None else clock_limits(int(reasons)),
        memory_used_bytes=memory_used_bytes,
        pcie_tx_bytes_per_s=_pcie(nvml, handle, "NVML_PCIE_UTIL_TX_BYTES"),
        pcie_rx_bytes_per_s=_pcie(nvml, handle, "NVML_PCIE_UTIL_RX_BYTES"),
        nvlink_tx_bytes=sent,
        nvlink_rx_bytes=received,
    )


def clock_limits(reasons: int) -> frozenset[ClockLimit]:
    """The limits in NVML's bits."""
    return frozenset(limit for bit, limit in _LIMITS if reasons & bit)


def _pcie(nvml: ModuleType | Any, handle: Any, counter: str) -> float | None:
    found = _asked(nvml, lambda: nvml.nvmlDeviceGetPcieThroughput(handle, getattr(nvml, counter)))
    return None if found is None else float(found) * 1024  # NVML tells KB/s


def _nvlink_bytes(nvml: ModuleType | Any, handle: Any) -> tuple[int | None, int | None]:
    def ask() -> list[int | None]:
        fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
        told = nvml.nvmlDeviceGetFieldValues(handle, [(field, _EVERY_LINK) for field in fields])
        return [int(one.value.ullVal) * 1024 if one.nvmlReturn == 0 else None for one in told]

    found = _asked(nvml, ask)
    return (None, None) if found is None else (found[0], found[1])


def _asked(nvml: ModuleType | Any, question: Callable[[], Answer]) -> Answer | None:
    """The answer; None where card or driver do not know the question, or an older binding has no such function."""
    try:
        return question()
    except (AttributeError, nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    except nvml.NVMLError as error:
        # Some drivers answer so to counters of links that a card does not have, or inside a container.
        kinds = tuple(
            kind
            for name in ("NVMLError_InvalidArgument", "NVMLError_NoPermission", "NVMLError_NoData")
            if isinstance(kind := getattr(nvml, name, None), type)
        )
        if isinstance(error, kinds):
            return None
        raise


def _per_thousand(milli: float | None) -> float | None:
    return None if milli is None else milli / 1000
