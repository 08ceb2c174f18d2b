"""``hermes-worker dev chaos``: the crash lab."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.entry import EXIT_FAILED, EXIT_UNUSABLE
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.cli.server import refuse_server_options

if TYPE_CHECKING:
    from hermes_worker.lab.duels import DuelKind
    from hermes_worker.lab.lab import LabProgress

_BAR_CHARS = 30


@click.command(
    epilog="""\b
Examples:
  hermes-worker dev chaos
  hermes-worker dev chaos --runs 200 --steps 10 --kills 200 --seed 7
  hermes-worker dev chaos --trees --duels 11 --people 4
  hermes-worker dev chaos --sqlite --kills 100
  hermes-worker dev chaos --database postgresql://user@host/empty_database"""
)
@click.option("--runs", type=click.IntRange(0, 100_000), default=20, show_default=True, help="Agent runs to submit.")
@click.option(
    "--steps",
    type=click.IntRange(1, 1_000),
    default=10,
    show_default=True,
    help="Steps of each run: a model call and its tool calls.",
)
@click.option("--kills", type=click.IntRange(0, 100_000), default=20, show_default=True, help="Workers to SIGKILL.")
@click.option(
    "--poisons",
    type=click.IntRange(0, 100),
    default=1,
    show_default=True,
    help="Runs beside the others that kill whatever works on them.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed gives the same faults.")
@click.option("--database", metavar="URL", help="An empty database to use; it is not restarted.")
@click.option(
    "--own-postgres",
    is_flag=True,
    help="Start a PostgreSQL for the experiment, and restart it too. The default where it can be started.",
)
@click.option("--sqlite", is_flag=True, help="Use an SQLite file. The default where no PostgreSQL can be started.")
@click.option(
    "--lease-ttl-s", type=click.FloatRange(0.5, 3600), default=3.0, show_default=True, help="Lease of the workers."
)
@click.option("--trees", is_flag=True, help="Runs delegate, ask for approval and are stopped, too.")
@click.option(
    "--duels",
    type=click.IntRange(0, 1_000),
    default=0,
    show_default=True,
    help="Runs in which two workers are brought to one row; 11 are one of each kind.",
)
@click.option(
    "--duel", "kinds", multiple=True, metavar="KIND", help="One more duel, of this kind, as held_once. May be repeated."
)
@click.option(
    "--people",
    type=click.IntRange(0, 100),
    default=0,
    show_default=True,
    help="People outside who submit, answer, write and schedule everything twice at once.",
)
@click.option(
    "--workers", type=click.IntRange(1, 50), default=2, show_default=True, help="Workers for models, and for tools."
)
@click.option("--only-kills", is_flag=True, help="Inject nothing but kills, to measure the takeover.")
@click.option("--keep", type=click.Path(path_type=Path), help="Work in this directory and leave it behind.")
@refuse_server_options
@click.option("--json", "is_json", is_flag=True, help="Print one JSON object instead of the summary.")
def chaos(
    runs: int,
    steps: int,
    kills: int,
    poisons: int,
    seed: int,
    database: str | None,
    own_postgres: bool,
    sqlite: bool,
    lease_ttl_s: float,
    trees: bool,
    duels: int,
    kinds: tuple[str, ...],
    people: int,
    workers: int,
    only_kills: bool,
    keep: Path | None,
    is_json: bool,
) -> int:
    """Break a fleet on purpose and check that nothing was lost, repeated or miscounted.

    Starts its own broker, database, scripted model and workers, then kills and freezes workers, wipes the broker,
    duplicates and drops messages, and jumps clocks. Exits with 1 when an invariant is broken, and with 2 when none is
    and something was not finished in time: it may only be slow, so nothing is said about it.
    """
    from hermes_worker.lab.lab import LabOptions, run_lab
    from hermes_worker.lab.report import render_json, render_text
    from hermes_worker.local.postgres import can_start_postgres

    if sum((bool(database), own_postgres, sqlite)) > 1:
        raise click.UsageError("--database, --own-postgres and --sqlite exclude each other: choose one database")
    options = LabOptions(
        runs=runs,
        steps=steps,
        kills=kills,
        poisons=0 if only_kills else poisons,
        seed=seed,
        database_url=database,
        own_postgres=own_postgres or (not (database or sqlite) and can_start_postgres()),
        ttl_s=lease_ttl_s,
        only_kills=only_kills,
        has_trees=trees,
        duels=duels,
        duel_kinds=_parse_duel_kinds(kinds),
        people=people,
        workers_per_role=workers,
    )

    with tempfile.TemporaryDirectory(prefix="hermes-chaos-", ignore_cleanup_errors=True) as temporary:
        # As root, PostgreSQL runs under another account, which has to get in; the files there are closed by themselves.
        Path(temporary).chmod(0o711)
        directory = keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        report = run_lab(options, directory, progress=_show_progress)
    clear_progress()
    click.echo(render_json(report) if is_json else render_text(report))
    if not report.is_green:
        return EXIT_FAILED
    return EXIT_UNUSABLE if report.unfinished else 0


def _parse_duel_kinds(names: tuple[str, ...]) -> list[DuelKind]:
    from hermes_worker.lab.duels import DuelKind

    if unknown := set(names) - set(DuelKind):
        raise click.UsageError(f"--duel: {min(unknown)!r} is no kind of duel; there are {', '.join(DuelKind)}")
    return [DuelKind(name) for name in names]


def _show_progress(progress: LabProgress) -> None:
    done = min(1.0, progress.steps_done / max(1, progress.steps_total))
    bar = "#" * round(done * _BAR_CHARS)
    show_progress(
        f"[{bar:<{_BAR_CHARS}}] {progress.steps_done}/{progress.steps_total} steps, "
        f"{progress.runs_open} runs open, {progress.faults_done}/{progress.faults_total} faults"
    )
