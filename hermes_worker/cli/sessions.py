"""``hermes-worker sessions``: conversations."""

from __future__ import annotations

import json
from pathlib import Path

import click

from hermes_worker.cli.options import TEXT, chosen_tenant, client_settings, of_tenant, reachable, this_user
from hermes_worker.cli.records import records_of, require_begun
from hermes_worker.cli.run_backend import LocalBackend, RunBackend, open_backend
from hermes_worker.cli.runs import watch_run
from hermes_worker.cli.server import server_client
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import Principal


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sessions() -> None:
    """Conversations."""


@sessions.command(epilog='Example: hermes-worker sessions compress run_0123... --focus "the parser"')
@reachable
@of_tenant
@click.argument("session_id", metavar="SESSION", type=TEXT)
@click.option("--focus", type=TEXT, default="", help="The topic that the summary should keep most of.")
@click.option("--detach", is_flag=True, help="Do not wait for the summary; print the run's id.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def compress(home: Path | None, session_id: str, focus: str, detach: bool, as_json: bool) -> int:
    """Summarise the older part of a session now. The transcript stays; a model is shown the summary in its place."""
    backend: RunBackend
    if (client := server_client()) is not None:
        run_id, backend = client.compress_session(session_id, focus=focus), open_backend(home)
    else:
        run_id, backend = _begun(home, session_id, focus)
    if detach:
        click.echo(json.dumps({"run_id": run_id}) if as_json else run_id)
        return 0
    return watch_run(backend, run_id, as_json=as_json)


def _begun(home: Path | None, session_id: str, focus: str) -> tuple[str, LocalBackend]:
    """The run, on this machine."""
    from hermes_worker.services.compressing import compress_session
    from hermes_worker.services.submission import announce
    from hermes_worker.store.runs.runs import SessionNotFound
    from hermes_worker.wiring import open_client

    settings = client_settings(home)
    require_begun(settings)
    principal = Principal(tenant=chosen_tenant(), name=this_user())
    opened = open_client(settings)
    try:
        _, created = compress_session(opened, session_id, focus, principal, source="cli")
        announce(opened, created)
    except SessionNotFound as error:
        raise ConfigurationError(str(error)) from None
    finally:
        opened.close()
    return created.run_id, LocalBackend(records_of(settings))
