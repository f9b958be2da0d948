"""`autotune bench search`: our sampler against every other one, replayed on surfaces whose truth is known."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Json

if TYPE_CHECKING:
    from autotune.bench.contenders import SamplerName
    from autotune.bench.jobs import Asked, Ran
    from autotune.bench.kept import KeptReplays
    from autotune.bench.summary import Study

_PROGRESS_S = 2.0
MOST_SEEDS = 1000


def register(app: typer.Typer) -> None:
    """Add the group and its command."""
    group = typer.Typer(help="Measure this program itself.", no_args_is_help=True)
    group.command("search")(search)
    # A group of a single command would otherwise be that command.
    group.callback()(_group)
    app.add_typer(group, name="bench")


def _group() -> None:
    """Measure this program itself."""


def search(
    quick: Annotated[bool, typer.Option("--quick", help="Three nodes and three seeds: about five minutes.")] = False,
    surface: Annotated[
        list[Path] | None,
        typer.Option("--surface", help="A recorded study (JSONL, see docs/search-benchmark.md) instead; repeatable."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_SEEDS,
            help="Studies per surface and sampler. Default: 7, on the shipped recordings 56; quick 3.",
        ),
    ] = None,
    samplers: Annotated[
        str | None, typer.Option(help="Names, separated by commas. Default: all whose libraries are here.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that replay studies.")] = 2,
    replays: Annotated[
        Path | None,
        typer.Option(
            help="File that finished studies are kept in, and taken from when the command is given again. "
            "Default: beside the truths of the nodes."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay studies of every sampler on simulated nodes and recorded studies: launches until the gap is closed.

    Ctrl-C ends it with the table of what is finished; the same command goes on from there.
    """
    from autotune.bench.run import run
    from autotune.errors import Interrupted

    asked = _asked(quick, tuple(surface or ()), seeds, samplers, workers)
    kept = _kept(replays, asked.cache_dir)
    progress = _Progress(None if kept is None else kept.path)
    with contextlib.nullcontext() if kept is None else contextlib.closing(kept):
        ran = run(asked, progress, kept)
    if ran.studies:
        _show(ran, as_json)
    if ran.stopped is not None:
        raise Interrupted(f"{ran.stopped}: {len(ran.studies)} of {ran.asked} studies; {progress.what_is_kept}")


def _kept(chosen: Path | None, cache: Path | None) -> KeptReplays | None:
    """The file that was chosen, else one of this version's in the cache folder; without room there, none."""
    from autotune.bench.identity import code_hash
    from autotune.bench.kept import KeptReplays
    from autotune.errors import AutotuneError

    if chosen is not None:
        return KeptReplays(chosen)
    if cache is None:
        return None
    try:
        return KeptReplays(cache / "bench" / f"replays-{code_hash()}.jsonl")
    except AutotuneError as error:
        typer.echo(f"{error.message}; the run goes on without", file=sys.stderr)
        return None


def _show(ran: Ran, as_json: bool) -> None:
    if as_json:
        from autotune.bench.document import document

        typer.echo(json.dumps(document(ran), indent=2))
        return
    from autotune.bench.tables import tables
    from autotune.cli.console import output_console
    from autotune.report.grid import print_to

    print_to(output_console(), tables(ran))


def _asked(quick: bool, files: tuple[Path, ...], seeds: int | None, names: str | None, workers: int) -> Asked:
    from autotune.bench.jobs import QUICK_NODES, QUICK_SEEDS, SEEDS, SEEDS_RECORDED, Asked, slow_first
    from autotune.bench.recorded import shipped_recorded
    from autotune.bench.situations import NODES
    from autotune.node.machine import cache_dir

    nodes = QUICK_NODES if quick else tuple(one.name for one in NODES)
    return Asked(
        nodes=() if files else nodes,
        files=files or shipped_recorded(),
        samplers=slow_first(_samplers(names)),
        seeds=seeds or (QUICK_SEEDS if quick else SEEDS),
        seeds_recorded=seeds or (QUICK_SEEDS if quick else SEEDS if files else SEEDS_RECORDED),
        cache_dir=cache_dir(os.environ),
        workers=workers,
    )


def _samplers(names: str | None) -> tuple[SamplerName, ...]:
    from autotune.bench.contenders import SamplerName, available
    from autotune.errors import InvalidOption
    from autotune.search.samplers import check_sampler

    if names is None:
        return available()
    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    for name in chosen:
        if name not in set(SamplerName):
            raise InvalidOption("--samplers", name, ", ".join(SamplerName))
        if name == SamplerName.GP:
            check_sampler(name, option="--samplers")
    return tuple(SamplerName(name) for name in chosen)


class _Progress:
    """A line on standard error every few seconds: what is done, and about how long the rest takes.

    Args:
        file: that finished studies are kept in; None where none are.
    """

    def __init__(self, file: Path | None) -> None:
        self._began = self._last = time.monotonic()
        self._file, self._taken_over = file, 0

    @property
    def what_is_kept(self) -> str:
        """The end of a sentence about a run that was cut short."""
        return "none is kept" if self._file is None else f"the same command goes on from there ({self._file})"

    def taken_over(self, count: int, total: int) -> None:
        self._taken_over = count
        if count:
            typer.echo(f"{count} of {total} studies taken over from {self._file}", file=sys.stderr)

    def finished(self, done: int, total: int, study: Study) -> None:
        now = time.monotonic()
        if now - self._last < _PROGRESS_S and done < total:
            return
        self._last = now
        rest_s = (now - self._began) / (done - self._taken_over) * (total - done)
        typer.echo(
            f"{done}/{total} studies, last {study.sampler} on {study.surface}, about {rest_s / 60:.1f} min left",
            file=sys.stderr,
        )

    def not_kept(self, why: str) -> None:
        self._file = None
        typer.echo(f"finished studies are not kept from here on: {why}", file=sys.stderr)
