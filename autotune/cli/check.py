"""`autotune check`: is production still what was promoted, and are its users still those it was tuned for?"""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.options import DEFAULT_STUDIES, Json, SloText, Storage, StudiesDir
from autotune.cli.surroundings import places_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.engine.observed import Observation
    from autotune.engine.watching import Watched
    from autotune.promote import Entry
    from autotune.promote.drift import Checked, Finding, Shown

SCHEMA = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("check")(check)


def check(
    url: Annotated[str, typer.Option(help="Address of the server, before /v1: http://prod:8000.")],
    promotion: Annotated[
        str | None,
        typer.Option(help="NAME or NAME@3 that it should be; default: the one that was promoted of its model."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to look on; nothing is sent.", min=1, max=86_400)] = 60.0,
    slo: SloText = None,
    model: Annotated[str | None, typer.Option(help="Model of the server, where it has several.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the server's API key.", metavar="NAME")
    ] = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Hold a running server against what was promoted: settings, workload, SLO. For a cron job: 0 is as promoted."""
    from autotune.cli.interrupted import run_until_signalled
    from autotune.cli.stores import opened
    from autotune.engine.found_server import base_of, key_of
    from autotune.engine.watching import watch
    from autotune.promote.drift import check as held_against
    from autotune.promote.history import named
    from autotune.review.history import history_of
    from autotune.review.promoting import extra_of
    from autotune.slo_text import parse_slo

    base, key = base_of(url), key_of(api_key_env, os.environ)
    asked = parse_slo(slo) if slo else None
    with opened(places_of(studies_dir, storage), promotion or "", kind="promotion") as store:
        history = history_of(store)
        extras = {study: extra_of(store, study) for study in {one.promotion.study for one in history}}
    entry = named(history, promotion) if promotion is not None else None
    typer.echo(f"looking on at {base} for {seconds:g} s", err=True)
    watched = run_until_signalled(lambda: watch(base, seconds, clock=time.monotonic, model=model, key=key))
    entry = entry or _of_its_model(history, watched)
    limit = asked or (parse_slo(entry.promotion.slo) if entry.promotion.slo else None)
    seen = _observed(base, watched)
    checked = held_against(entry.promotion, _shown(watched), seen, limit)
    extra = extras.get(entry.promotion.study, ())
    commands = _commands(entry, base, checked, str(limit) if limit else None, extra)
    if as_json:
        typer.echo(json.dumps(_document(entry, base, seen, checked, commands), indent=2))
    else:
        _print(entry, base, seen, checked, commands)
    _end(entry, checked)


def _of_its_model(history: Sequence[Entry], watched: Watched) -> Entry:
    """The one promotion that runs today of the server's model.

    Raises:
        InvalidOption: there is none, or there are several.
    """
    from autotune.errors import InvalidOption
    from autotune.promote.history import current_of

    names = {name for name in (watched.server.model, watched.server.root) if name}
    current = current_of(history)
    found = [entry for entry in current if entry.promotion.model in names]
    if len(found) == 1:
        return found[0]
    allowed = ", ".join(entry.promotion.name for entry in (found or current)) or "nothing was promoted yet"
    raise InvalidOption("--promotion", None, f"one of: {allowed}")


def _observed(base: str, watched: Watched) -> Observation:
    """What was served meanwhile.

    Raises:
        ServerUnusable: it was started again while we looked on.
    """
    from autotune.engine.observed import ServerRestarted, observe
    from autotune.errors import ServerUnusable

    try:
        return observe(watched.readings)
    except ServerRestarted as error:
        raise ServerUnusable(f"{base}: {error}", hint="Its log says why; check again once it runs.") from None


def _shown(watched: Watched) -> Shown:
    from autotune.engine.metrics_text import parse_metrics
    from autotune.promote.drift import Shown

    server = watched.server
    configs = parse_metrics(watched.readings[-1].text).series("cache_config_info")
    return Shown(
        vllm_version=server.facts.vllm_version,
        names=tuple(name for name in (server.model, server.root) if name),
        max_model_len=server.facts.max_model_len,
        kv_cache_tokens=server.facts.kv_cache_tokens,
        labels=dict(configs[0].labels) if configs else None,
        info=watched.info,
    )


def _commands(entry: Entry, base: str, checked: Checked, slo: str | None, extra: tuple[str, ...]) -> tuple[str, ...]:
    from autotune.promote.drift import remedies

    kinds = [finding.kind for finding in checked.findings]
    return remedies(entry.promotion, entry.label, base, slo, kinds, extra)


def _print(entry: Entry, base: str, seen: Observation, checked: Checked, commands: Sequence[str]) -> None:
    from autotune.report.wording import printable

    promotion = entry.promotion
    typer.echo(
        f"{base} against {printable(entry.label)} (trial {promotion.trial} of study {printable(promotion.study)})"
    )
    if promotion.simulated:
        typer.echo("SIMULATED: what was promoted was never measured on a server.")
    ended = "-" if seen.ended is None else f"{seen.ended:,}"
    typer.echo(f"{ended} requests ended in {seen.seconds:.0f} s\n")
    for finding in checked.findings:
        typer.echo(f"{_words(finding)}: {printable(finding.what)} {printable(finding.found)}")
        typer.echo(f"    promoted: {printable(finding.promoted)}")
    for text in checked.same:
        typer.echo(f"as promoted: {printable(text)}")
    for text in checked.unseen:
        typer.echo(f"not seen: {printable(text)}")
    if commands:
        typer.echo("\nWhat to do:")
        for line in commands:
            typer.echo(f"  {line}")


def _words(finding: Finding) -> str:
    return str(finding.kind).replace("_", " ").replace("slo", "SLO").upper()


def _document(entry: Entry, base: str, seen: Observation, checked: Checked, commands: Sequence[str]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "url": base,
        "promotion": entry.label,
        "simulated": entry.promotion.simulated,
        "seconds": seen.seconds,
        "ended": seen.ended,
        "verdict": str(checked.worst) if checked.worst else "as_promoted",
        "findings": [
            {"kind": str(one.kind), "what": one.what, "promoted": one.promoted, "found": one.found}
            for one in checked.findings
        ],
        "as_promoted": list(checked.same),
        "not_seen": list(checked.unseen),
        "commands": list(commands),
    }


def _end(entry: Entry, checked: Checked) -> None:
    """End as the worst finding says.

    Raises:
        SloBreached, ConfigDrifted, WorkloadDrifted: there is one.
    """
    from autotune.errors import ConfigDrifted, SloBreached, WorkloadDrifted
    from autotune.promote.drift import FindingKind
    from autotune.report.wording import printable

    if checked.worst is None:
        return
    kinds = {
        FindingKind.SLO_BREACH: SloBreached,
        FindingKind.CONFIG_DRIFT: ConfigDrifted,
        FindingKind.WORKLOAD_DRIFT: WorkloadDrifted,
    }
    told = "; ".join(printable(f"{one.what} {one.found}") for one in checked.findings if one.kind is checked.worst)
    raise kinds[checked.worst](f"not as {entry.label}: {told}")
