"""A Ray cluster as the tuner reaches it: connected to once a process, its nodes asked what they are.

Never started from here: an operator does that (docs/nodes.md), and a tuner that is not reached by one says so.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.engine.base import ServerIdentity
from autotune.engine.command import VllmCommand
from autotune.engine.flags import AcceptedFlags
from autotune.engine.reaping import ReapReport, reap
from autotune.errors import AutotuneError, ClusterUnusable
from autotune.executor.nodes import NodeReport, alike, chosen, report_here
from autotune.planning import Surroundings
from autotune.recipe import EngineChoice, Recipe, parse_address

if TYPE_CHECKING:
    import ray

REACH_S = 10.0
ANSWER_S = 120.0
"""For a node to start a worker that tells what the node is; an idle one takes a second or two."""

INSTALL = "pip install 'vllm-autotune[ray]' here and on every node; docs/nodes.md tells how to bring a cluster up."


def check_ray() -> None:
    """Whether Ray is there at all.

    Raises:
        ClusterUnusable: it is not installed.
    """
    if importlib.util.find_spec("ray") is None:
        raise ClusterUnusable("--executor ray needs Ray, which is not installed", hint=INSTALL)


@dataclass(slots=True, kw_only=True)
class Cluster:
    """A cluster that this process is connected to."""

    ray: Any

    @classmethod
    def join(cls, address: str | None) -> Cluster:
        """Connect; the same connection where there is one.

        Args:
            address: HOST:PORT of its head; None for RAY_ADDRESS, or the cluster that this machine is part of.

        Raises:
            ClusterUnusable: Ray is not installed, or no cluster answers.
        """
        check_ray()
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        try:
            import ray
        except (ImportError, OSError) as error:  # half an installation, or for another Python
            raise ClusterUnusable(f"the Ray that is installed cannot be loaded: {error}", hint=INSTALL) from None

        if ray.is_initialized():
            return cls(ray=ray)
        where = address or os.environ.get("RAY_ADDRESS") or "auto"
        _answers(where)
        # What Ray says of lost workers, the study says in its own words.
        logging.getLogger("ray").setLevel(logging.CRITICAL)
        try:
            ray.init(
                address=where,
                namespace="autotune",
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
            # Of no cluster at all, Ray's own words tell of an option that this program does not have.
            why = "" if where == "auto" and isinstance(error, ConnectionError) else first_line(error)
            raise ClusterUnusable(_unreached(where, why), hint=_START) from None
        return cls(ray=ray)

    def leave(self) -> None:
        """Disconnect; what this process started on the cluster ends."""
        self.ray.shutdown()

    def nodes(self) -> dict[str, dict[str, Any]]:
        """What Ray says of the nodes that are alive, by id."""
        return {node["NodeID"]: node for node in self.ray.nodes() if node["Alive"]}

    def on(self, node_id: str, function: Callable[..., Any], *arguments: Any) -> ray.ObjectRef[Any]:
        """Call a function on a node, beside whatever runs there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)
        remote = self.ray.remote(num_cpus=0, max_retries=1)(function)
        return remote.options(scheduling_strategy=there).remote(*arguments)

    def reports(self, ids: Sequence[str], folder: Path | None) -> tuple[NodeReport, ...]:
        """What nodes tell of themselves, by host; those that went meanwhile are left out.

        Args:
            folder: of the studies; it exists. None asks nobody whether it is shared.
        """
        known = self.nodes()
        token = (folder or Path("/nowhere")) / f".nodes-{secrets.token_hex(8)}"
        if folder is not None:
            token.touch()
        try:
            asked = [self.on(node, report_here, *_of(known[node]), str(token)) for node in ids if node in known]
            self.ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S) if asked else None
            found = []
            for one in asked:
                with suppress(self.ray.exceptions.RayError):
                    found.append(self.ray.get(one, timeout=0))
        finally:
            if folder is not None:
                token.unlink(missing_ok=True)
        return tuple(sorted(found, key=lambda one: (one.host, one.id)))

    def usable(self, names: Sequence[str], folder: Path | None) -> tuple[NodeReport, ...]:
        """The nodes for one study: those that were named, all alike.

        Raises:
            ClusterUnusable: there is none, a name is nobody's, or they differ.
        """
        serving = [node for node, said in self.nodes().items() if said["Resources"].get("CPU") or _gpus(said)]
        return alike(chosen(self.reports(serving, folder), names))

    def reap(self, identity: ServerIdentity) -> ReapReport | None:
        """Stop what is left of a server on the machine of its name; None where no node of that name answers."""
        there = [node for node, said in self.nodes().items() if said["NodeManagerHostname"] == identity.host]
        for node in there:
            with suppress(self.ray.exceptions.RayError):
                report: ReapReport = self.ray.get(self.on(node, reap, identity), timeout=ANSWER_S + identity.grace_s)
                return report
        return None


def surroundings_there(here: Surroundings, recipe: Recipe) -> Surroundings:
    """The surroundings that a study on a cluster is planned for: those of its nodes, all alike.

    Raises:
        ClusterUnusable: see `Cluster.join` and `Cluster.usable`.
    """
    cluster = Cluster.join(recipe.ray_address)
    if recipe.engine is EngineChoice.SIMULATED or (recipe.engine is EngineChoice.AUTO and recipe.node is not None):
        return here
    nodes = cluster.usable(recipe.ray_nodes, None)

    def ask(command: VllmCommand, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        return _agreed(cluster, nodes, command, deadline_s)

    return replace(here, serving=nodes[0].node, ask_there=ask)


def _agreed(
    cluster: Cluster, nodes: Sequence[NodeReport], command: VllmCommand, deadline_s: float
) -> tuple[str | None, AcceptedFlags]:
    """What the server command says on every node.

    Raises:
        ClusterUnusable: the nodes have different versions of vLLM.
        VllmCommandError: it cannot be asked on one of them.
    """
    asked = [cluster.on(one.id, ask_here, command, deadline_s) for one in nodes]
    answers: list[Any] = []
    for one, reference in zip(nodes, asked, strict=True):
        try:
            answer = cluster.ray.get(reference, timeout=deadline_s + ANSWER_S)
        except cluster.ray.exceptions.RayError as error:
            raise ClusterUnusable(f"node {one.host} did not tell its vLLM's version: {first_line(error)}") from None
        if isinstance(answer, AutotuneError):
            answer.message = f"on {one.host}: {answer.message}"
            raise answer
        answers.append(answer)
    versions = {one.host: str(version) for one, (version, _) in zip(nodes, answers, strict=True)}
    if len(set(versions.values())) > 1:
        shown = ", ".join(f"{host}: {version}" for host, version in sorted(versions.items()))
        raise ClusterUnusable(
            f"the nodes have different versions of vLLM, so their figures cannot be compared: {shown}",
            hint="Install the same one everywhere, or name the nodes that have it with --ray-nodes.",
        )
    version, accepted = answers[0]
    return version, accepted


def ask_here(command: VllmCommand, deadline_s: float) -> object:
    """Version and flags of the server command on this machine, or the error that says why not; called on a node."""
    from autotune.engine.command import question_words
    from autotune.engine.flag_cache import ask_flags
    from autotune.executor.ray_task import environment
    from autotune.node.machine import cache_dir

    environ = environment(os.environ)
    try:
        found = ask_flags(question_words(command), cache_dir(environ), env=environ, deadline_s=deadline_s)
    except AutotuneError as error:
        return error
    return found.version, found.accepted


_START = (
    "Start one with `ray start --head`, add the other hosts with `ray start --address=HOST:6379`, and run this on one "
    "of them, or name it with --ray-address HOST:6379 (docs/nodes.md)."
)


def _unreached(where: str, why: str) -> str:
    which = "no Ray cluster is found here" if where == "auto" else f"the Ray cluster at {where} is not reached"
    return f"{which}{': ' if why else ''}{why}"


def _answers(where: str) -> None:
    """Ray itself takes more than a minute to find out that nobody is there.

    Raises:
        InvalidOption: it is no port of anybody's; RAY_ADDRESS says it, as an option was looked at before.
        ClusterUnusable: nobody is.
    """
    host, colon, port = where.rpartition(":")
    if where == "auto" or not colon or not port.isdigit():
        return
    parse_address(where, "RAY_ADDRESS")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ClusterUnusable(_unreached(where, str(error)), hint=_START) from None


def first_line(error: BaseException) -> str:
    """What went wrong, without the rest of Ray's traces."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _of(said: dict[str, Any]) -> tuple[str, str, int, int]:
    return said["NodeID"], said["NodeManagerAddress"], _gpus(said), int(said["Resources"].get("CPU", 0))


def _gpus(said: dict[str, Any]) -> int:
    return int(said["Resources"].get("GPU", 0))
