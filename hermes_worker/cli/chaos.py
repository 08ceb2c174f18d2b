"""``hermes-worker dev chaos``: the crash lab."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.server import refuse_server_options

_BAR_CHARS = 30


@click.command(
    epilog="""\b
Examples:
  hermes-worker dev chaos
  hermes-worker dev chaos --runs 200 --steps 10 --kills 200 --seed 7
  hermes-worker dev chaos --own-postgres --kills 100
  hermes-worker dev chaos --database postgresql://user@host/empty_database"""
)
@click.option("--runs", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Agent runs to submit.")
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
@click.option("--database", metavar="URL", help="An empty database to use instead of SQLite; it is not restarted.")
@click.option("--own-postgres", is_flag=True, help="Start a PostgreSQL for the experiment, and restart it too.")
@click.option(
    "--lease-ttl-s", type=click.FloatRange(0.5, 3600), default=3.0, show_default=True, help="Lease of the workers."
)
@click.option("--trees", is_flag=True, help="Runs delegate, ask for approval and are stopped, too.")
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
    lease_ttl_s: float,
    trees: bool,
    only_kills: bool,
    keep: Path | None,
    is_json: bool,
) -> int:
    """Break a fleet on purpose and check that nothing was lost, repeated or miscounted.

    Starts its own broker, database, scripted model and workers, then kills and freezes workers, wipes the broker,
    duplicates and drops messages, and jumps clocks. Exits with 1 when an invariant is broken.
    """
    from hermes_worker.lab.lab import LabOptions, LabProgress, run_lab
    from hermes_worker.lab.report import render_json, render_text

    if database and own_postgres:
        raise click.UsageError("--database and --own-postgres exclude each other: choose whose database it is")
    options = LabOptions(
        runs=runs,
        steps=steps,
        kills=kills,
        poisons=0 if only_kills else poisons,
        seed=seed,
        database_url=database,
        own_postgres=own_postgres,
        ttl_s=lease_ttl_s,
        only_kills=only_kills,
        has_trees=trees,
    )

    def show(progress: LabProgress) -> None:
        if sys.stderr.isatty():
            done = min(1.0, progress.steps_done / progress.steps_total)
            bar = "#" * round(done * _BAR_CHARS)
            sys.stderr.write(
                f"\r[{bar:<{_BAR_CHARS}}] {progress.steps_done}/{progress.steps_total} steps, "
                f"{progress.runs_open} runs open, {progress.faults_done}/{progress.faults_total} faults "
            )

    with tempfile.TemporaryDirectory(prefix="hermes-chaos-", ignore_cleanup_errors=True) as temporary:
        # As root, PostgreSQL runs under another account, which has to get in; the files there are closed by themselves.
        Path(temporary).chmod(0o711)
        directory = keep or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        report = run_lab(options, directory, progress=show)
    if sys.stderr.isatty():
        sys.stderr.write("\r\033[K")
    click.echo(render_json(report) if is_json else render_text(report))
    return 0 if report.is_green else EXIT_FAILED
