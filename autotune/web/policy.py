"""What a request may make this machine do: the operator's choice, not the request's.

A study file may name programs to run, files to read and flags that load code. Whoever reaches the API may use only what
the operator allowed when the service was started; docs/threat-model.md says why each is so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from autotune.engine.flags import from_argv
from autotune.errors import NOT_SHOWN, InvalidOption, UnknownName
from autotune.load.workloads import builtin_workloads
from autotune.recipe import AUTO_SPACE, WIDE_SPACE, parse_address
from autotune.search.space import shipped_spaces

REFUSED_FIELDS = ("vllm_command", "notify_command", "notify_url")
"""Keys of a study file that name a program or an address: only the operator's own are used."""

TUNABLE = frozenset(
    (
        *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-expert-parallel"),
        *("gpu-memory-utilization", "max-model-len", "max-num-seqs", "max-num-batched-tokens", "kv-cache-dtype"),
        *("enable-prefix-caching", "enforce-eager", "block-size", "dtype", "quantization", "async-scheduling"),
        *("api-server-count", "stream-interval", "performance-mode", "numa-bind", "max-cudagraph-capture-size"),
        *("enable-eplb", "disable-custom-all-reduce", "enable-chunked-prefill"),
    )
)
"""Parameters that a starting point may set: they say how fast a server is, and name no code, file or address."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?")
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is allowed beside the plain fields.

    Attributes:
        server_flags: flags without dashes that may stand in `extra_args` and in starting points.
        models: patterns of hub names that may be served.
        model_folders: folders below which models may be served.
        files: folder from which spaces, workloads, traces and prompts may be taken by name; None: shipped ones alone.
        ray_addresses: of clusters that a study may join beside the one that RAY_ADDRESS says, or that this machine is
            part of: a cluster runs code as this user.
        simulated_only: no real server may be started.
    """

    server_flags: tuple[str, ...] = ()
    models: tuple[str, ...] = ("*",)
    model_folders: tuple[Path, ...] = ()
    files: Path | None = None
    ray_addresses: tuple[str, ...] = ()
    simulated_only: bool = False

    def vetted(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """The keys of a study file as the study may have them: names of files of ours as paths.

        Raises:
            InvalidOption: something that the operator did not allow.
            UnknownName: a name that is none of ours.
        """
        for key in REFUSED_FIELDS:
            if key in fields:
                raise InvalidOption(
                    key, NOT_SHOWN, "nothing: a request cannot name it", hint="Only the service's operator sets it."
                )
        found = dict(fields)
        for key in ("model", "checkpoints"):
            if key in found:
                self._check_models(key, found[key])
        if "space" in found:
            found["space"] = self._named("search space", found["space"], (AUTO_SPACE, WIDE_SPACE, *shipped_spaces()))
        if "workload" in found:
            found["workload"] = self._named("workload", found["workload"], builtin_workloads())
        prompts = found.get("quality", {}).get("prompts")
        if prompts is not None:
            found["quality"] = {**found["quality"], "prompts": str(self._file("quality.prompts", prompts))}
        self._check_flags(found)
        self._check_cluster(found)
        if self.simulated_only:
            if found.get("engine") == "process":
                raise InvalidOption("engine", "process", "simulated: this service starts no servers")
            found["engine"] = "simulated"
        return found

    def _check_models(self, key: str, said: str | list[str]) -> None:
        for name in [said] if isinstance(said, str) else said:
            if key == "checkpoints" and name == "auto":
                continue
            if _HUB_NAME.fullmatch(name):
                if any(fnmatchcase(name, pattern) for pattern in self.models):
                    continue
                raise InvalidOption(key, name, f"names like {', '.join(self.models)}")
            if not any(_is_below(name, folder) for folder in self.model_folders):
                folders = ", ".join(map(str, self.model_folders))
                below = f", or the whole path of a folder below {folders}" if folders else ""
                raise InvalidOption(key, name, f"a name such as meta-llama/Llama-3.1-8B-Instruct{below}")

    def _named(self, kind: str, name: str, known: tuple[str, ...]) -> str:
        if name in known:
            return name
        if self.files is None or not _FILE_NAME.fullmatch(name):
            raise UnknownName(
                kind, name, known, hint="A request cannot name files but those of the service's operator."
            )
        return str(self._file(kind, name))

    def _file(self, key: str, name: str) -> Path:
        """A file of the operator's by its bare name."""
        if self.files is not None and _FILE_NAME.fullmatch(name):
            for path in (self.files / name, self.files / f"{name}.yaml"):
                if path.is_file() and _is_below(str(path), self.files):
                    return path
        raise InvalidOption(
            key, name, "the name of a file that the service's operator offers", hint="See GET /api/v1/service."
        )

    def _check_cluster(self, fields: Mapping[str, Any]) -> None:
        said = fields.get("ray_address")
        if said is not None and parse_address(said, "ray_address") not in (None, *self.ray_addresses):
            raise InvalidOption(
                "ray_address",
                said,
                ", ".join(("auto", *self.ray_addresses)),
                hint="The service's operator allows clusters by --allow-ray-address.",
            )

    def _check_flags(self, fields: Mapping[str, Any]) -> None:
        for name, value in from_argv([str(word) for word in fields.get("extra_args", ())]):
            if name not in self.server_flags:
                allowed = ", ".join(f"--{flag}" for flag in self.server_flags) or "no flag at all"
                raise InvalidOption(
                    "extra_args", f"--{name} {value}", allowed, hint="The operator allows flags by --allow-flag."
                )
        for point in fields.get("starting_points", ()):
            for name in point:
                if name not in TUNABLE and name not in self.server_flags:
                    raise InvalidOption("starting_points", name, ", ".join(sorted(TUNABLE)))


def _is_below(path: str, folder: Path) -> bool:
    """Whether an absolute path leads to something inside, links followed."""
    if not path.startswith("/") or "\0" in path:
        return False
    try:
        return Path(path).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False
