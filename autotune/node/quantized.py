"""How a checkpoint is quantised, and the bytes of a matrix under it. Pure.

Bytes are those that vLLM holds after loading: packed weights, scales, zero points. Sources: vLLM 0.32,
`model_executor/layers/quantization/` (awq, gptq, fp8, fbgemm_fp8, compressed_tensors, bitsandbytes, mxfp4, modelopt).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.errors import InvalidFile
from autotune.node.module_names import NameFilter, name_filter

_MOST_NAMES = 200_000
_ALLOWED_BITS = (1, 2, 3, 4, 5, 6, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How one kind of matrix is stored.

    Attributes:
        bits: of one weight.
        block_rows, block_columns: outputs and inputs that share a scale; None for all of them.
        scale_bytes: of one scale; 0 for none.
        zero_bits: of the zero point of one block; 0 for a symmetric scheme.
    """

    bits: int
    block_rows: int | None = None
    block_columns: int | None = None
    scale_bytes: float = 0
    zero_bits: int = 0

    def size_bytes(self, rows: int, columns: int) -> int:
        """Bytes of a matrix of `rows` outputs by `columns` inputs."""
        weights = _ceil(rows * columns * self.bits, 8)
        blocks = _ceil(rows, self.block_rows or rows) * _ceil(columns, self.block_columns or columns)
        return weights + _ceil(round(blocks * (8 * self.scale_bytes + self.zero_bits)), 8)


SIXTEEN_BIT = Scheme(bits=16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """The whole checkpoint's quantisation.

    Attributes:
        method: vLLM's word, e.g. `awq`, `fp8`, `compressed-tensors`.
        schemes: (which modules, how), the first that matches counts; None stands for every linear module.
        ignored: modules left in 16 bit.
        experts_only: nothing but the routed experts is quantised (mxfp4).
        expert_hidden_multiple, expert_size_multiple: what the kernels pad the experts' two sizes to.
        kv_cache_dtype: what the checkpoint asks for; None where it does not.
        doubt: what is not sure about the reading; None when nothing is.
    """

    method: str
    schemes: tuple[tuple[NameFilter | None, Scheme], ...]
    ignored: NameFilter = field(default_factory=NameFilter)
    experts_only: bool = False
    expert_hidden_multiple: int = 1
    expert_size_multiple: int = 1
    kv_cache_dtype: str | None = None
    doubt: str | None = None

    @property
    def weight_bits(self) -> int:
        """Of the quantised matrices; the first scheme's where there are several."""
        return self.schemes[0][1].bits if self.schemes else 16

    def scheme_of(self, names: Sequence[str], *, expert: bool) -> Scheme:
        """How the module of these names (the spellings a checkpoint may use) is stored."""
        if (self.experts_only and not expert) or any(self.ignored.matches(name) for name in names):
            return SIXTEEN_BIT
        for which, scheme in self.schemes:
            if which is None or any(which.matches(name) for name in names):
                return scheme
        return SIXTEEN_BIT


class UnknownQuantization(Exception):
    """A method whose bytes are not known here; carries the method's name."""


def read_quantization(raw: object, *, file: str, key: str = "quantization_config") -> Quantization | None:
    """What a `quantization_config` says; None for an empty one.

    Raises:
        InvalidFile: a value of the wrong type or outside its range.
        UnknownQuantization: a method that is not in the table and names no bits.
    """
    if raw is None or raw == {}:
        return None
    if not isinstance(raw, Mapping):
        raise InvalidFile(file, key, raw, "a mapping")
    section = _Section(raw, file, key)
    method = (section.text("quant_method") or _method_by_keys(raw)).lower().replace("_", "-")
    if method.startswith("modelopt") or "quant_algo" in raw:
        return _modelopt(section)
    reader = _READERS.get(method)
    if reader is not None:
        return reader(section)
    bits = section.bits("bits") or section.bits("w_bit")
    if bits is None:
        raise UnknownQuantization(method)
    scheme = _grouped(section, bits, zero_bits=bits)
    doubt = f"the quantisation {method!r} is not known; counted as {bits} bit in groups"
    return _made(method, scheme, section, doubt=doubt)


class _Section:
    """Typed reads from a part of the config, with errors that name the key path."""

    def __init__(self, raw: Mapping[str, Any], file: str, key: str) -> None:
        self.raw, self.file, self.key = raw, file, key

    def integer(self, name: str, *, least: int = -1, most: int = 1 << 20) -> int | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidFile(self.file, f"{self.key}.{name}", value, f"a whole number from {least} to {most}")
        return value

    def bits(self, name: str, default: int | None = None) -> int | None:
        """Like `integer`, for a number of bits that weights come in."""
        value = self.integer(name)
        if value is not None and value not in _ALLOWED_BITS:
            raise InvalidFile(
                self.file, f"{self.key}.{name}", value, f"one of {', '.join(str(b) for b in _ALLOWED_BITS)} bits"
            )
        return default if value is None else value

    def text(self, name: str) -> str | None:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidFile(self.file, f"{self.key}.{name}", value, "a text")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise InvalidFile(self.file, f"{self.key}.{name}", value, "true or false")
        return value

    def part(self, name: str) -> _Section | None:
        value = self.raw.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise InvalidFile(self.file, f"{self.key}.{name}", value, "a mapping")
        return _Section(value, self.file, f"{self.key}.{name}")

    def names(self, *keys: str) -> NameFilter:
        found: list[str] = []
        for name in keys:
            value = self.raw.get(name)
            if value is None:
                continue
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                raise InvalidFile(self.file, f"{self.key}.{name}", value, "a list of module names")
            if len(value) > _MOST_NAMES:
                raise InvalidFile(self.file, f"{self.key}.{name}", f"{len(value)} names", f"at most {_MOST_NAMES}")
            found += value
        return name_filter(found, self.file, f"{self.key}.{keys[0]}")


def _method_by_keys(raw: Mapping[str, Any]) -> str:
    if "config_groups" in raw:
        return "compressed-tensors"
    if raw.get("load_in_4bit") or raw.get("load_in_8bit"):
        return "bitsandbytes"
    return "unnamed"


_IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")


def _made(method: str, scheme: Scheme, section: _Section, **more: Any) -> Quantization:
    return Quantization(
        method=method,
        schemes=((None, scheme),),
        ignored=section.names(*_IGNORED),
        **more,
    )


def _kv_dtype(section: _Section) -> str | None:
    """`fp8` where the checkpoint brings 8-bit float scales for K and V and vLLM's `auto` follows them.

    vLLM 0.32 does so for compressed-tensors and modelopt only; the `kv_cache_scheme` of a `quant_method: fp8`
    checkpoint waits for `--kv-cache-dtype fp8`.
    """
    scheme = section.raw.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        part = _Section(scheme, section.file, f"{section.key}.kv_cache_scheme")
        return "fp8" if part.integer("num_bits") == 8 and part.text("type") == "float" else None
    algo = scheme if isinstance(scheme, str) else section.raw.get("kv_cache_quant_algo")
    return "fp8" if isinstance(algo, str) and algo.upper() == "FP8" else None


def _grouped(section: _Section, bits: int, *, zero_bits: int) -> Scheme:
    group = section.integer("group_size")
    if group is None:
        group = section.integer("q_group_size")
    if group == 0:
        raise InvalidFile(section.file, f"{section.key}.group_size", group, "-1 or a number above 0")
    columns = None if group is None or group < 0 else group
    return Scheme(bits=bits, block_rows=1, block_columns=columns, scale_bytes=2, zero_bits=zero_bits)


def _awq(section: _Section) -> Quantization:
    bits = section.bits("bits") or section.bits("w_bit", 4) or 4
    zeros = bits if section.flag("zero_point", True) else 0
    return _made("awq", _grouped(section, bits, zero_bits=zeros), section)


def _gptq(section: _Section, method: str = "gptq") -> Quantization:
    # A symmetric checkpoint stores zero points too, but the Marlin kernels drop them when they repack the weights.
    bits = section.bits("bits", 4) or 4
    return _made(method, _grouped(section, bits, zero_bits=0 if section.flag("sym", True) else bits), section)


def _fp8(section: _Section) -> Quantization:
    block = section.raw.get("weight_block_size")
    if block is None:
        return _made("fp8", Scheme(bits=8, scale_bytes=4), section)
    if (
        not isinstance(block, list)
        or len(block) != 2
        or not all(isinstance(n, int) and not isinstance(n, bool) and 0 < n <= 1 << 20 for n in block)
    ):
        raise InvalidFile(section.file, f"{section.key}.weight_block_size", block, "two numbers above 0")
    return _made("fp8", Scheme(bits=8, block_rows=block[0], block_columns=block[1], scale_bytes=4), section)


def _per_row_8bit(method: str, section: _Section) -> Quantization:
    return _made(method, Scheme(bits=8, block_rows=1, scale_bytes=4), section)


def _bitsandbytes(section: _Section) -> Quantization:
    # vLLM unpacks doubly quantised scales when it loads: 4 bytes for each block of 64 weights.
    if section.flag("load_in_8bit", False):
        return _per_row_8bit("bitsandbytes", section)
    return _made("bitsandbytes", Scheme(bits=4, block_rows=1, block_columns=64, scale_bytes=4), section)


def _mxfp4(section: _Section) -> Quantization:
    # Marlin and TRT-LLM pad so (fused_moe/oracle/mxfp4.py); gpt-oss-120b then loads the 65.9 GiB that are logged.
    scheme = Scheme(bits=4, block_rows=1, block_columns=32, scale_bytes=1)
    return _made("mxfp4", scheme, section, experts_only=True, expert_hidden_multiple=256, expert_size_multiple=128)


def _modelopt(section: _Section) -> Quantization:
    inner = section.part("quantization")
    part = inner or section
    algo = (part.text("quant_algo") or "FP8").upper()
    kv_dtype = _kv_dtype(part) or _kv_dtype(section)
    ignored = part.names(*_IGNORED)
    schemes = {
        "FP8": Scheme(bits=8, scale_bytes=4),
        "FP8_PER_CHANNEL_PER_TOKEN": Scheme(bits=8, block_rows=1, scale_bytes=4),
        "FP8_PB_WO": Scheme(bits=8, block_rows=128, block_columns=128, scale_bytes=4),
        "NVFP4": Scheme(bits=4, block_rows=1, block_columns=16, scale_bytes=1),
        "NVFP4_AWQ": Scheme(bits=4, block_rows=1, block_columns=16, scale_bytes=1),
        "W4A16_AWQ": Scheme(bits=4, block_rows=1, block_columns=128, scale_bytes=2),
        "MXFP8": Scheme(bits=8, block_rows=1, block_columns=32, scale_bytes=1),
    }
    scheme = schemes.get(algo)
    if scheme is None:
        raise UnknownQuantization(f"modelopt {algo}")
    return Quantization(method="modelopt", schemes=((None, scheme),), ignored=ignored, kv_cache_dtype=kv_dtype)


def _compressed_tensors(section: _Section) -> Quantization:
    groups = section.part("config_groups")
    if groups is None or not groups.raw:
        raise InvalidFile(section.file, f"{section.key}.config_groups", section.raw.get("config_groups"), "a mapping")
    schemes: list[tuple[NameFilter | None, Scheme]] = []
    for name in sorted(groups.raw, key=str):
        group = groups.part(str(name))
        weights = group.part("weights") if group else None
        if group is None or weights is None:
            continue  # a group that quantises activations only
        targets = group.raw.get("targets")
        everything = targets is None or (isinstance(targets, list) and "Linear" in targets)
        schemes.append((None if everything else group.names("targets"), _ct_scheme(weights)))
    # Named targets before the one for everything else.
    schemes.sort(key=lambda pair: pair[0] is None)
    sparse = section.part("sparsity_config")
    pruned = sparse is not None and (sparse.text("format") or "dense") not in ("dense",)
    return Quantization(
        method="compressed-tensors",
        schemes=tuple(schemes),
        ignored=section.names("ignore"),
        kv_cache_dtype=_kv_dtype(section),
        doubt="its weights are stored sparse; they are counted as if dense" if pruned else None,
    )


def _ct_scheme(weights: _Section) -> Scheme:
    bits = weights.bits("num_bits", 8) or 8
    strategy, kind = weights.text("strategy") or "tensor", weights.text("type") or "int"
    zeros = 0 if weights.flag("symmetric", True) else bits
    group = weights.integer("group_size")
    if group == 0:
        raise InvalidFile(weights.file, f"{weights.key}.group_size", group, "-1 or a number above 0")
    columns = None if group is None or group < 0 else group
    if kind == "float" and bits == 4:  # nvfp4 in groups of 16, mxfp4 in groups of 32: one-byte scales
        return Scheme(bits=4, block_rows=1, block_columns=columns or 16, scale_bytes=1)
    if strategy == "block":
        block = weights.raw.get("block_structure") or [128, 128]
        if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and 0 < n < 1 << 20 for n in block):
            raise InvalidFile(weights.file, f"{weights.key}.block_structure", block, "two numbers above 0")
        return Scheme(bits=bits, block_rows=block[0], block_columns=block[1], scale_bytes=4)
    if strategy in ("group", "tensor_group") or columns is not None:
        return Scheme(bits=bits, block_rows=1, block_columns=columns, scale_bytes=2, zero_bits=zeros)
    if strategy == "channel":
        return Scheme(bits=bits, block_rows=1, scale_bytes=4 if bits == 8 else 2, zero_bits=zeros)
    return Scheme(bits=bits, scale_bytes=4)


_READERS = {
    "awq": _awq,
    "awq-marlin": _awq,
    "gptq": _gptq,
    "gptq-marlin": _gptq,
    "gptq-bitblas": _gptq,
    "auto-round": lambda section: _gptq(section, "auto-round"),
    "intel/auto-round": lambda section: _gptq(section, "auto-round"),
    "fp8": _fp8,
    "fbgemm-fp8": lambda section: _per_row_8bit("fbgemm_fp8", section),
    "ptpc-fp8": lambda section: _per_row_8bit("ptpc_fp8", section),
    "experts-int8": lambda section: replace(_per_row_8bit("experts_int8", section), experts_only=True),
    "tpu-int8": lambda section: _per_row_8bit("tpu_int8", section),
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "mxfp4": _mxfp4,
    "gpt-oss-mxfp4": _mxfp4,
}


def _ceil(value: int, step: int) -> int:
    return -(-value // step)
