"""``hermes-worker dev prove``: show six properties of resuming."""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hermes_worker.cli.entry import EXIT_FAILED, EXIT_INTERRUPTED, explain_error
from hermes_worker.cli.server import refuse_server_options


@click.command(
    epilog="""\b
Examples:
  hermes-worker dev prove
  hermes-worker dev prove --kills 1000 --resume proof.jsonl
  hermes-worker dev prove --kills 1000 --sqlite --resume proof.jsonl --json"""
)
@click.option(
    "--kills",
    type=click.IntRange(1, 1_000_000),
    default=12,
    show_default=True,
    help="Experiments, each with one kill, over the six properties by turns.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed and number give the same kill.")
@click.option(
    "--resume",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Results as JSON Lines: what stands there is not done again, and new results are added.",
)
@click.option(
    "--batch", type=click.IntRange(1, 500), default=48, show_default=True, help="Experiments of one fleet at once."
)
@click.option("--sqlite", is_flag=True, help="Use SQLite. The default where no PostgreSQL can be started.")
@refuse_server_options
@click.option("--json", "is_json", is_flag=True, help="Print the scorecard as JSON instead of a table.")
def prove(kills: int, seed: int, resume: Path | None, batch: int, sqlite: bool, is_json: bool) -> int:
    """Show six properties of resuming with workers that are killed, judged from outside.

    Starts a broker, a database, a scripted model, two API servers and workers of its own. After an interruption the
    same command with the same --resume goes on. Exits with 1 when a property is broken.
    """
    from hermes_worker import __version__
    from hermes_worker.lab import prove as proving
    from hermes_worker.local.postgres import can_start_postgres

    options = proving.ProveOptions(
        experiments=kills, seed=seed, batch=batch, own_postgres=not sqlite and can_start_postgres()
    )
    rows = _read_results(resume)
    status = 0
    try:
        with tempfile.TemporaryDirectory(prefix="hermes-prove-", ignore_cleanup_errors=True) as temporary:
            Path(temporary).chmod(0o711)  # PostgreSQL may run under another account
            for row in proving.prove(options, Path(temporary), tuple(rows), explain_error):
                rows.append(row)
                if resume is not None:
                    with resume.open("a", encoding="utf-8") as file:
                        file.write(f"{json.dumps(row)}\n")
    except KeyboardInterrupt:
        click.echo("Stopped; the same command goes on from --resume.", err=True)
        status = EXIT_INTERRUPTED
    at = datetime.now(UTC).isoformat(timespec="seconds")
    card = proving.build_scorecard(rows, version=__version__, at=at)
    click.echo(json.dumps(card, indent=2) if is_json else _render_table(card))
    return EXIT_FAILED if any(row["outcome"] == "broken" for row in rows) else status


def _read_results(resume: Path | None) -> list[dict[str, Any]]:
    """Read what earlier calls found. Ends with a sentence where the file holds anything else."""
    if resume is None or not resume.exists():
        return []
    try:
        rows = [json.loads(line) for line in resume.read_text(encoding="utf-8").splitlines()]
        if all(row["outcome"] in ("held", "broken") and row["database"] for row in rows):
            return rows
    except (ValueError, KeyError, TypeError):
        pass  # refused below, as rows with other outcomes are
    raise click.UsageError(f"{str(resume)!r} does not hold results of this command: name another file with --resume")


def _render_table(card: dict[str, Any]) -> str:
    lines = [f"hermes-worker {card['version']}, {card['at']}, Python {sys.version.split()[0]}"]
    for database, properties in card["databases"].items():
        lines.append(f"\n{database}")
        for name, found in properties.items():
            mark = "ok " if not found["broken"] else "BAD"
            lines.append(
                f"  {mark} {name:<22} {found['held']:>5} held, {found['kills']:>5} kills, {found['broken']} broken"
            )
            if "first_failure" in found:
                first = found["first_failure"]
                lines.append(
                    f"        seed {first['seed']}, number {first['number']}, {first['point']}: {first['seen']}"
                )
    return "\n".join(lines)
