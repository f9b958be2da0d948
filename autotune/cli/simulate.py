"""`autotune simulate-server`: the simulation behind vLLM's HTTP surface."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the command; every option after its name is the server's own."""
    app.command(
        "simulate-server",
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
        add_help_option=False,
    )(simulate_server)


def simulate_server(context: typer.Context) -> None:
    """Serve a simulated vLLM: its flags, endpoints, log lines, exit codes, and faults on demand (--help lists all)."""
    from autotune.simulator.server import main

    raise typer.Exit(main(context.args))
