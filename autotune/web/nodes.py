"""Operations on nodes, and what this service allows."""

from __future__ import annotations

import asyncio
import os
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from autotune import __version__
from autotune.errors import AutotuneError
from autotune.load.workloads import builtin_workloads
from autotune.node.gpus import known_nodes
from autotune.node.nvml_probe import open_probe
from autotune.node.probe import cpu_node, detect_node
from autotune.promote import Target
from autotune.recipe import AUTO_SPACE, WIDE_SPACE, ExecutorChoice
from autotune.records import Node, PickRule, Topology
from autotune.review.views import node_of
from autotune.search.samplers import SAMPLERS
from autotune.search.space import shipped_spaces
from autotune.web.asked import NodePath
from autotune.web.policy import REFUSED_FIELDS, TUNABLE
from autotune.web.problems import Refused
from autotune.web.route import Answer, Call
from autotune.web.service import Service
from autotune.web.wanted import NewStudy

if TYPE_CHECKING:
    from autotune.store.repository import Store


def this_node() -> Node:
    """This machine as a study would see it; without its GPUs where they cannot be asked."""
    try:
        return detect_node(open_probe(), dict(os.environ)) or cpu_node()
    except AutotuneError:
        return cpu_node()


def node_document(node: Node, *, here: bool, studies: list[str]) -> dict[str, Any]:
    """A node without its wiring."""
    return {
        "name": node.name,
        "here": here,
        "simulated": node.simulated,
        "gpus": [
            {
                "index": gpu.index,
                "name": gpu.name,
                "memory_bytes": gpu.memory_bytes,
                "compute_capability": ".".join(map(str, gpu.compute_capability)) if gpu.compute_capability else None,
            }
            for gpu in node.gpus
        ],
        "link": str(node.link),
        "driver": node.driver,
        "studies": studies,
    }


def _topology(found: Topology | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "paths": [[None if path is None else str(path) for path in row] for row in found.paths],
        "nvlinks": [list(row) for row in found.nvlinks],
        "numa": list(found.numa),
    }


async def _nodes(service: Service) -> list[tuple[Node, bool, list[str]]]:
    """This machine first, then those that studies ran on, each with its studies."""
    here = await asyncio.to_thread(this_node)

    def look(store: Store) -> dict[str, tuple[Node, list[str]]]:
        found: dict[str, tuple[Node, list[str]]] = {}
        for study in store.studies():
            if "node" not in study.spec:
                continue
            node = node_of(study)
            found.setdefault(node.name, (node, []))[1].append(study.name)
        return found

    none: dict[str, tuple[Node, list[str]]] = {}
    known = await service.ask(look, empty=none)
    own = known.pop(here.name, (here, []))[1]
    return [(here, True, own), *((node, False, studies) for node, studies in known.values())]


async def list_nodes(service: Service, call: Call) -> Answer:
    """This machine, and the nodes that studies ran on."""
    del call
    nodes = [node_document(node, here=here, studies=studies) for node, here, studies in await _nodes(service)]
    return Answer(document={"nodes": nodes})


async def get_node(service: Service, call: Call) -> Answer:
    """One node with its wiring."""
    path: NodePath = call.path
    for node, here, studies in await _nodes(service):
        if node.name == path.name:
            document = node_document(node, here=here, studies=studies)
            return Answer(document={**document, "topology": _topology(node.topology)})
    raise Refused(HTTPStatus.NOT_FOUND, "unknown-node", f"unknown node {path.name!r}")


async def get_service(service: Service, call: Call) -> Answer:
    """What this service is and allows: everything that a form for a new study needs."""
    del call
    settings, policy = service.settings, service.settings.policy
    here = await asyncio.to_thread(this_node)
    offered = sorted(path.name for path in policy.files.iterdir() if path.is_file()) if policy.files else []
    return Answer(
        document={
            "version": __version__,
            "studies_dir": str(settings.places.root),
            "node": node_document(here, here=True, studies=[]),
            "policy": {
                "fields": list(NewStudy.model_fields),
                "refused": list(REFUSED_FIELDS),
                "extra_args": list(policy.server_flags),
                "starting_points": sorted(TUNABLE),
                "models": list(policy.models),
                "model_folders": [str(folder) for folder in policy.model_folders],
                "files": offered,
                "workloads": list(builtin_workloads()),
                "spaces": [AUTO_SPACE, WIDE_SPACE, *shipped_spaces()],
                "samplers": list(SAMPLERS),
                "nodes": list(known_nodes()),
                "executors": [str(executor) for executor in ExecutorChoice],
                "ray_addresses": ["auto", *policy.ray_addresses],
                "targets": [str(target) for target in Target],
                "pick_rules": [str(rule) for rule in PickRule],
                "simulated_only": policy.simulated_only,
            },
        }
    )
