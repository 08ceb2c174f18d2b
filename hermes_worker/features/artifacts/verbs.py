"""``hermes-worker runs artifacts``: list and fetch the files that a run left."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_count, format_moment, render_table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.errors import ConfigurationError, format_reason

if TYPE_CHECKING:
    from hermes_worker.features.artifacts.schema import ArtifactList, ArtifactObject

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STATES = {
    "none": "the run declared no artifacts; name some with 'submit --artifact PATTERN'",
    "open": "the run has not ended; its files are gathered when it has",
    "pending": "the run has ended, and its files are being gathered; ask again",
    "done": "no file of the run fits what it declared",
}


@click.command(epilog="Example: hermes-worker runs artifacts run_0123... --fetch ./results")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option(
    "--fetch",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the files below this directory. A file that is there already is never replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def artifacts(home: Path | None, run_id: str, directory: Path | None, as_json: bool) -> int:
    """The files that a run made or changed and that were kept; with --fetch, get them."""
    client = open_api_client(home)
    found = client.artifacts(complete_id(client, run_id, "run"))
    if as_json:
        click.echo(json.dumps(_render_document(found)))
    else:
        _show(found)
    if directory is not None:
        for file in found.data:
            _write(directory, file, client.artifact(file))
        click.echo(f"wrote {format_count(len(found.data), 'file')} below {directory}", err=True)
    return EXIT_FAILED if found.state == "failed" else 0


def _render_document(found: ArtifactList) -> dict[str, object]:
    untold = {"object", "id", "url", "url_expires_at"}
    return {
        "state": found.state,
        "reason": found.reason,
        "gathered": found.gathered,
        "files": [{"artifact_id": file.id, **file.model_dump(exclude=untold)} for file in found.data],
        "left_out_total": found.left_out_total,
        "left_out": [one.model_dump() for one in found.left_out],
    }


def _show(found: ArtifactList) -> None:
    if found.data:
        rows = [
            (
                flatten_text(file.path, 80),
                str(file.size),
                file.media_type,
                file.sha256[:16],
                format_moment(file.created_at),
            )
            for file in found.data
        ]
        click.echo(render_table(rows, ("PATH", "BYTES", "TYPE", "SHA-256", "KEPT"), whole=(0,)))
    elif found.state == "failed":
        click.echo(f"the files of the run could not be gathered: {strip_controls(found.reason or '')}", err=True)
    elif found.gathered:
        click.echo(
            f"what the run left ({format_count(found.gathered, 'file')}) was deleted by a rule of retention", err=True
        )
    else:
        click.echo(_STATES[found.state], err=True)
    for one in found.left_out:
        click.echo(f"left out: {flatten_text(one.path, 80)}: {strip_controls(one.reason)}", err=True)
    if found.left_out_total > len(found.left_out):
        click.echo(f"left out: {found.left_out_total - len(found.left_out)} more", err=True)


def _write(directory: Path, artifact: ArtifactObject, content: bytes) -> None:
    """Write a file below ``directory``, through no link: an agent chose the path. Raises ``ConfigurationError``."""
    parts = PurePosixPath(artifact.path).parts
    if not parts or artifact.path.startswith("/") or any(part in (".", "..") or "\0" in part for part in parts):
        raise ConfigurationError(f"the artifact {artifact.id} has a path that is not below a directory")
    if hashlib.sha256(content).hexdigest() != artifact.sha256:
        raise ConfigurationError(f"the artifact {artifact.id} is not what was kept: its hash differs")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in parts[:-1]:
                folder = _enter(folder, name)
            with os.fdopen(os.open(parts[-1], _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
                file.write(content)
        finally:
            os.close(folder)
    except OSError as error:
        where = f"{strip_controls(artifact.path)!r} below {str(directory)!r}"
        raise ConfigurationError(
            f"{where} cannot be written ({format_reason(error)}); choose an empty directory"
        ) from error


def _enter(folder: int, name: str) -> int:
    """Open the folder within, creating it if needed; ``folder`` is closed when that succeeds."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        pass  # another artifact lies in the same folder; a file or a link of that name is refused by the opening
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner
