"""``hermes-worker data workspaces``: workspaces that are not on this machine."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

import click

from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, common
from hermes_worker.cli.records import Records, open_records
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.wiring import find_object_target, load_workspace_states
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.build import find_workspace_target
from hermes_worker.workspaces.remote.targets import WorkspaceTarget


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def workspaces() -> None:
    """List and remove workspaces that are not on this machine."""


@workspaces.command("list")
@common
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_workspaces(home: Path | None, as_json: bool) -> None:
    """The workspaces of the kind that new sessions get, and whose they are."""
    records = open_records(home)
    place = _find_place(records)
    try:
        roots = {PurePosixPath(root).name: root for root in place.list_roots()}
    except WorkspaceError as error:
        raise ConfigurationError(str(error)) from error
    states = load_workspace_states(records.settings, records.database, list(roots))
    print_entries(
        roots,
        ("KIND", "ROOT", "SESSION"),
        lambda name: (place.kind, roots[name], states.get(name, "not of this database")),
        document=(lambda name: {"kind": place.kind, "root": roots[name], "session": name, "state": states.get(name)})
        if as_json
        else None,
        whole=(0, 1),
    )


@workspaces.command(epilog="Its files are gone then; the next call of the session says so, and begins in an empty one.")
@common
@click.argument("session", type=TEXT)
@click.option("--force", is_flag=True, help="Also when the session is at work, or not of this database.")
def remove(home: Path | None, session: str, force: bool) -> None:
    """Remove the workspace of a session, with its files."""
    records = open_records(home)
    place = _find_place(records)
    try:
        root = next((root for root in place.list_roots() if PurePosixPath(root).name == session), None)
        if root is None:
            raise ConfigurationError(f"no workspace of the kind {place.kind} is called {session!r}")
        state = load_workspace_states(records.settings, records.database, [session]).get(session)
        if state != "quiet" and not force:
            what = "is at work" if state else "is not of this database"
            raise ConfigurationError(f"the session {session!r} {what}: --force removes its workspace all the same")
        place.remove(root)
    except WorkspaceError as error:
        raise ConfigurationError(str(error)) from error
    click.echo(f"removed {root}")


def _find_place(records: Records) -> WorkspaceTarget:
    settings = records.settings
    place = find_workspace_target(settings)
    if settings.terminal.workspace == "objects":
        place = find_object_target(settings, records.database)
    if place is None:
        kind = settings.terminal.workspace
        raise ConfigurationError(
            f"workspaces of the kind {kind!r} are not listed: local ones are directories below HOME/workspaces, and "
            "those of extensions are theirs"
        )
    return place
