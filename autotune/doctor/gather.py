"""Looks at this machine and fills `Findings`: the only part of `doctor` that asks anything, beside `serving`."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path

import psutil

from autotune.doctor.findings import Findings, FoundModel, FoundPorts, FoundVllm, GpuState, Problem
from autotune.engine.command import VllmCommand, choose_command, question_words, resolve_command
from autotune.engine.flag_cache import HELP_DEADLINE_S, InstalledVllm, ask_flags
from autotune.engine.ports import free_port, listeners
from autotune.errors import UnknownName, UnsupportedHardware, VllmCommandError
from autotune.node.gpus import parse_node_name
from autotune.node.machine import (
    complete_topology,
    count_numa_nodes,
    find_hf_token,
    name_processes,
    read_open_files,
    read_room,
)
from autotune.node.model_shape import UnsizedModel, hub_cache, load_shape
from autotune.node.probe import GpuProbe, detect_node
from autotune.records import Node
from autotune.yaml_input import existing_file

SHM = Path("/dev/shm")  # noqa: S108 - its size is asked, nothing is written there
WELL_KNOWN_PORTS = (8000,)
"""Where `vllm serve` listens unless told otherwise."""
_WEIGHTS = ("*.safetensors", "*.bin", "*.gguf", "*.pt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """This machine as `doctor` may look at it; handed in, so that tests need no machine of their own.

    Attributes:
        probe: None where there is no NVIDIA driver, or one that does not answer: `probe_problem` says which.
        cache_dir: where a command's flags are remembered.
        has_kfd: whether /dev/kfd exists, which is how AMD's driver shows.
    """

    environ: Mapping[str, str] = field(repr=False)
    home: Path
    probe: GpuProbe | None
    cache_dir: Path
    has_kfd: bool
    probe_problem: Problem | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the operator asked about."""

    gpus: str | None = None
    vllm_command: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The findings, and what a small server is started with: the command and what its parser takes, where it works."""

    findings: Findings
    command: VllmCommand | None = None
    installed: InstalledVllm | None = None


def look(asked: Asked, here: Here) -> Looked:
    """Everything about this machine; takes as long as the server command needs to show its flags.

    Raises:
        InvalidOption: `--gpus` names no GPU of ours.
        UnknownName: the model is neither here nor the name of a download.
        InvalidFile: its config.json is damaged.
    """
    shm = read_room(SHM) if SHM.is_dir() else None
    gpus = _look_at_gpus(asked.gpus, here, shm.total if shm else None)
    model = None if asked.model is None else look_at_model(asked.model, here.environ, here.home)
    found, command, installed = _look_at_command(asked.vllm_command, here)
    cache = hub_cache(here.environ, here.home)
    findings = Findings(
        node=gpus.node,
        gpu_problem=gpus.problem,
        hidden=gpus.hidden,
        gpus=gpus.states,
        cuda=here.probe.cuda_version() if here.probe else None,
        strangers=gpus.strangers,
        numa_nodes=count_numa_nodes(),
        shm=shm,
        vllm=found,
        token=find_hf_token(here.environ, here.home),
        model=model,
        cache=str(cache),
        cache_room=read_room(cache),
        ports=_look_at_ports(),
        open_files=read_open_files(),
    )
    return Looked(findings=findings, command=command, installed=installed)


def look_at_named(node: str, model: str | None, here: Here) -> Findings:
    """What can be said of a node that is only named.

    Raises:
        UnknownName: no such node, or no such model.
        InvalidFile: the model's config.json is damaged.
    """
    found = None if model is None else look_at_model(model, here.environ, here.home)
    return Findings(node=parse_node_name(node), model=found)


def look_at_model(name: str, environ: Mapping[str, str], home: Path) -> FoundModel:
    """The model's shape, and whether its weights are on this machine.

    Raises:
        UnknownName: neither a folder, nor in the cache, nor in the catalogue, nor the name of a download.
        InvalidFile: a config.json that cannot be read.
    """
    folder = existing_file(name)
    is_folder = folder is not None and folder.is_dir()
    shape, doubt = None, ""
    try:
        shape = load_shape(name, env=environ, home=home)
    except UnsizedModel as error:
        doubt = f"its memory cannot be computed: {error.message}"
    except UnknownName as error:
        if is_folder or name.count("/") != 1 or name.startswith((".", "/", "~")):
            raise
        doubt = f"{error.message}; its config.json is not on this machine"
    return FoundModel(
        name=name,
        shape=shape,
        is_folder=is_folder,
        weights_here=_has_weights(folder if folder is not None and is_folder else _cached(name, environ, home)),
        doubt=doubt,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpus:
    node: Node | None = None
    problem: Problem | None = None
    hidden: int = 0
    states: tuple[GpuState, ...] = ()
    strangers: tuple[tuple[int, int], ...] = ()


def _look_at_gpus(requested: str | None, here: Here, shm_bytes: int | None) -> _Gpus:
    if here.probe_problem is not None:
        return _Gpus(problem=here.probe_problem)
    probe = here.probe
    try:
        node = detect_node(
            probe,
            here.environ,
            requested,
            shm_bytes=shm_bytes,
            has_kfd=here.has_kfd,
            numa_nodes=count_numa_nodes(),
        )
        if probe is None:
            return _Gpus()
        physical = len(probe.list_gpus())
        if node is None:
            return _Gpus(hidden=physical)
        indices = tuple(gpu.index for gpu in node.gpus)
        states = tuple(
            GpuState(index=index, memory=probe.memory(index), processes=name_processes(probe.processes(index)))
            for index in indices
        )
        strangers = tuple(pair for pair in combinations(indices, 2) if probe.peer_access(*pair) is False)
    except UnsupportedHardware as error:
        return _Gpus(problem=Problem(text=error.message, remedy=error.hint))
    return _Gpus(
        node=_completed(node, indices, here.environ),
        hidden=physical - node.gpu_count,
        states=states,
        strangers=strangers,
    )


def _completed(node: Node, indices: tuple[int, ...], environ: Mapping[str, str]) -> Node:
    if node.topology is None:
        return node
    return replace(node, topology=complete_topology(node.topology, indices, environ))


def _look_at_command(
    argument: str | None, here: Here
) -> tuple[FoundVllm | Problem, VllmCommand | None, InstalledVllm | None]:
    try:
        chosen = choose_command(argument=argument, environ=here.environ)
        command = resolve_command(chosen, search_path=here.environ.get("PATH"))
        installed = ask_flags(question_words(command), here.cache_dir, env=here.environ, deadline_s=HELP_DEADLINE_S)
    except VllmCommandError as error:
        return Problem(text=error.message, remedy=error.hint), None, None
    found = FoundVllm(
        command=command.text,
        version=installed.version,
        flags=len(installed.accepted.flags),
        binds_numa=installed.accepted.get("numa-bind") is not None,
    )
    return found, command, installed


def _look_at_ports() -> FoundPorts:
    try:
        free_port()
    except OSError:
        return FoundPorts(can_listen=False)
    taken = [port for port in WELL_KNOWN_PORTS if not _is_free(port)]
    return FoundPorts(can_listen=True, taken=tuple((port, name_processes(sorted(_holders(port)))) for port in taken))


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        # As servers do: a connection that ended a moment ago does not count.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _holders(port: int) -> frozenset[int]:
    try:
        return listeners(port)
    except psutil.Error:
        return frozenset()  # some systems tell only root


def _cached(name: str, environ: Mapping[str, str], home: Path) -> Path | None:
    """The folder of a hub id in the Hugging Face cache."""
    if name.count("/") != 1 or ".." in name or "\0" in name:
        return None
    return hub_cache(environ, home) / f"models--{name.replace('/', '--')}" / "snapshots"


def _has_weights(folder: Path | None) -> bool:
    """Whether a model's folder, or one of the snapshots below it, holds files of weights."""
    if folder is None:
        return False
    try:
        return any(next(folder.glob(f"{below}{kind}"), None) for below in ("", "*/") for kind in _WEIGHTS)
    except (OSError, ValueError):
        return False
