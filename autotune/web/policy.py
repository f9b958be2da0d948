"""What a request may make this machine do: the operator's choice, not the request's. Pure.

A study file may name programs to run, files to read and flags that load code; whoever reaches the API may not, unless
the operator said so when the service was started. See docs/threat-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

REFUSED_FIELDS = ("vllm_command", "notify_command", "notify_url")
"""Keys of a study file that name a program or an address: only the operator's own may be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What is allowed beside the plain fields.

    Attributes:
        server_flags: flags without dashes that may stand in `extra_args`.
        models: patterns of names (`org/name`) that may be served; folders only below `model_folders`.
        model_folders: absolute folders whose models may be served.
        files: absolute folder from which spaces, workloads and prompts may be taken by their names; None: shipped ones.
        simulated_only: no study of real servers may be started.
    """

    server_flags: tuple[str, ...] = ()
    models: tuple[str, ...] = ("*/*",)
    model_folders: tuple[str, ...] = ()
    files: str | None = None
    simulated_only: bool = False
