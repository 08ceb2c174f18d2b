"""``hermes-worker runs submit|retry|wait|join``: submit and await many runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import RunBackend, open_backend
from hermes_worker.cli.screen import colour_status
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.run import RunStatus

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient

_timeout = click.option("--timeout", "timeout_s", type=click.FloatRange(0), help="Seconds at most. Default: no limit.")


@click.command(
    epilog='Each line: {"input": "...", "tags": ["t"], "idempotency_key": "k"}. The exit code is 1 if one is refused.'
)
@reachable
@of_tenant
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True))
def submit(home: Path | None, file: str) -> int:
    """Submit the runs of FILE, one JSON object per line as POST /v1/runs takes it; - reads standard input. What became
    of each is printed. At a home a line that is no run refuses the whole file."""
    try:
        with click.open_file(file, encoding="utf-8", errors="replace") as lines:
            asked = [_parse_object(line, number) for number, line in enumerate(lines, 1)]
    except OSError as error:
        raise ConfigurationError(f"{file!r} cannot be read: {error.strerror}") from None
    reached = connect_api(home, begins_work=True)
    client = reached.client
    if reached.settings is not None:
        _require_runs(client, asked)
    refused = 0
    for begin in range(0, len(asked), _ASKED_AT_ONCE):
        for number, made in enumerate(client.submit_all(asked[begin : begin + _ASKED_AT_ONCE]), begin + 1):
            wrong = made.error
            refused += wrong is not None
            said = {"error": wrong.message} if wrong else {"run_id": made.run_id}
            click.echo(json.dumps({"line": number, **said}))
    return EXIT_FAILED if refused else 0


def _require_runs(client: HermesClient, asked: Sequence[Mapping[str, Any]]) -> None:
    """Raise ``ConfigurationError`` for the first line that cannot be submitted."""
    for begin in range(0, len(asked), _ASKED_AT_ONCE):
        read = client.submit_all(asked[begin : begin + _ASKED_AT_ONCE], dry_run=True)
        for number, each in enumerate(read, begin + 1):
            if (wrong := each.error) is not None:
                raise ConfigurationError(f"line {number} cannot be submitted: {wrong.message}")


_ASKED_AT_ONCE = 1_000
"""Most runs of one request of the API."""


def _parse_object(line: str, number: int) -> dict[str, Any]:
    """Parse a line as a JSON object. Raises ``ConfigurationError``."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"line {number} is no JSON") from None
    if not isinstance(document, dict):
        raise ConfigurationError(f"line {number} is no JSON object")
    return document


@click.command(epilog="The new run is of the same session; what the first one did stands there and is not done again.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
def retry(home: Path | None, run_id: str) -> None:
    """Submit once more what one run that has ended was asked."""
    backend = open_backend(home, begins_work=True)
    click.echo(backend.client.retry(backend.complete_run_id(run_id)))


@click.command(epilog="The exit code is 0 when the run completed, and 1 when it did not, or the time was over.")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@_timeout
def wait(home: Path | None, run_id: str, timeout_s: float | None) -> int:
    """Wait for the end of one run."""
    backend = open_backend(home)
    return _join(backend, [backend.complete_run_id(run_id)], is_any=False, timeout_s=timeout_s)


@click.command(epilog="The exit code is 0 when all that ended completed, and 1 otherwise, or when the time was over.")
@reachable
@of_tenant
@click.argument("run_ids", metavar="RUN_ID...", nargs=-1, required=True, type=TEXT)
@click.option("--any", "is_any", is_flag=True, help="Until one of them has ended.")
@_timeout
def join(home: Path | None, run_ids: tuple[str, ...], is_any: bool, timeout_s: float | None) -> int:
    """Wait for the end of several runs."""
    backend = open_backend(home)
    return _join(backend, list(map(backend.complete_run_id, run_ids)), is_any=is_any, timeout_s=timeout_s)


def _join(backend: RunBackend, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> int:
    joined = backend.client.join(run_ids, mode="any" if is_any else "all", timeout_s=timeout_s)
    ends = {end.run_id: end.status for end in joined.runs if end.status is not None}
    for run_id in run_ids:
        click.echo(f"{run_id} {colour_status(ends[run_id]) if run_id in ends else 'has not ended'}")
    is_done = bool(ends) if is_any else len(ends) == len(set(run_ids))
    has_failed = any(status is not RunStatus.COMPLETED for status in ends.values())
    return 0 if is_done and not has_failed else EXIT_FAILED
