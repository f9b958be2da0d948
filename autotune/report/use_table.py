"""What GPUs and CPUs did beside each level, for `autotune show`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Group

from autotune.records import CpuUse, GpuUse, LevelUse, Measurement
from autotune.report.grid import add, column, grid, titled
from autotune.report.wording import MISSING, number, printable, seconds, share
from autotune.units import format_bytes

_OfGpu = Callable[[GpuUse], float | None]
_Pretty = Callable[[float | None], str]


def use_table(measurements: Sequence[Measurement], mark: str) -> Group | None:
    """One column a level; None where nothing was seen. A row that no level has is left out.

    Of several GPUs each cell has the lowest and the highest figure.
    """
    seen = [measured.use or LevelUse() for measured in measurements]
    rows = [(name, cells) for name, cells in _rows(seen) if any(cell != MISSING for cell in cells)]
    if not rows:
        return None
    table = grid()
    column(table, "")
    for measured in measurements:
        column(table, printable(measured.level.name), right=True)
    for name, cells in rows:
        add(table, name, *cells)
    return titled(f"What GPUs and CPUs did{mark}", table)


def _rows(seen: Sequence[LevelUse]) -> list[tuple[str, list[str]]]:
    gpu_rows: list[tuple[str, _OfGpu, _Pretty]] = [
        ("GPU busy", lambda gpu: gpu.busy_share, share),
        ("GPU memory busy", lambda gpu: gpu.memory_busy_share, share),
        ("GPU power, mean", lambda gpu: gpu.power_mean_w, _with("W")),
        ("GPU power, limit", lambda gpu: gpu.power_limit_w, _with("W")),
        ("SM clock, mean", lambda gpu: gpu.sm_clock_mean_mhz, _with("MHz")),
        ("SM clock, highest possible", lambda gpu: gpu.sm_clock_limit_mhz, _with("MHz")),
        ("held down by the power limit", lambda gpu: gpu.power_capped_share, share),
        ("held down by heat or a brake", lambda gpu: gpu.slowed_share, share),
        ("GPU memory in use, maximum", lambda gpu: gpu.memory_used_max_bytes, _size),
        ("PCIe sent", lambda gpu: gpu.pcie_tx_bytes_per_s, _pace),
        ("PCIe received", lambda gpu: gpu.pcie_rx_bytes_per_s, _pace),
        ("NVLink sent", lambda gpu: gpu.nvlink_tx_bytes_per_s, _pace),
        ("NVLink received", lambda gpu: gpu.nvlink_rx_bytes_per_s, _pace),
    ]
    cpus = [use.cpu or CpuUse() for use in seen]
    return [
        *((name, [_span([of(gpu) for gpu in use.gpus], pretty) for use in seen]) for name, of, pretty in gpu_rows),
        ("load client's CPU, of a core", [share(cpu.client_share) for cpu in cpus]),
        ("client's wake-up late by, p99", [seconds(cpu.loop_lag_p99_s) for cpu in cpus]),
        ("API server's CPU, of a core", [share(cpu.api_server_share) for cpu in cpus]),
        ("server's CPU, cores", [number(cpu.server_cores, digits=1) for cpu in cpus]),
        ("kernels compiled", [number(use.jit_compiles) for use in seen]),
    ]


def _span(values: Sequence[float | None], pretty: _Pretty) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return MISSING
    low, high = pretty(min(known)), pretty(max(known))
    return low if low == high else f"{low} .. {high}"


def _with(unit: str) -> _Pretty:
    return lambda value: f"{number(value)} {unit}"


def _size(value: float | None) -> str:
    return MISSING if value is None else format_bytes(value)


def _pace(value: float | None) -> str:
    return MISSING if value is None else f"{value / 1e9:.2f} GB/s"
