"""``hermes-worker runs artifacts``: list and fetch the files that a run left."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path, PurePosixPath

import click

from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import format_moment, render_table
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.run_backend import open_backend
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.core.errors import ConfigurationError, format_reason
from hermes_worker.safety.redaction import redact
from hermes_worker.store.artifacts.listing import ArtifactView, RunArtifacts

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
    backend = open_backend(home)
    found = backend.artifacts(backend.complete_run_id(run_id))
    if as_json:
        click.echo(json.dumps(_render_document(found)))
    else:
        _show(found)
    if directory is not None:
        for view in found.files:
            _write(directory, view, backend.artifact(view))
        click.echo(f"wrote {len(found.files)} files below {directory}", err=True)
    return EXIT_FAILED if found.state == "failed" else 0


def _render_document(found: RunArtifacts) -> dict[str, object]:
    told = ("artifact_id", "path", "size", "sha256", "media_type", "modified_at", "created_at")
    return {
        "state": found.state,
        "reason": redact(found.reason) if found.reason else None,
        "gathered": found.gathered,
        "files": [{name: getattr(view, name) for name in told} for view in found.files],
        "left_out_total": found.left_out,
        "left_out": [{"path": one.path, "reason": one.reason} for one in found.left_out_named],
    }


def _show(found: RunArtifacts) -> None:
    if found.files:
        rows = [
            (
                flatten_text(view.path, 80),
                str(view.size),
                view.media_type,
                view.sha256[:16],
                format_moment(view.created_at),
            )
            for view in found.files
        ]
        click.echo(render_table(rows, ("PATH", "BYTES", "TYPE", "SHA-256", "KEPT"), whole=(0,)))
    elif found.state == "failed":
        click.echo(
            f"the files of the run could not be gathered: {strip_controls(redact(found.reason or ''))}", err=True
        )
    elif found.gathered:
        click.echo(f"the {found.gathered} files of the run were deleted by a rule of retention", err=True)
    else:
        click.echo(_STATES[found.state], err=True)
    for one in found.left_out_named:
        click.echo(f"left out: {flatten_text(one.path, 80)}: {strip_controls(one.reason)}", err=True)
    if found.left_out > len(found.left_out_named):
        click.echo(f"left out: {found.left_out - len(found.left_out_named)} more", err=True)


def _write(directory: Path, view: ArtifactView, content: bytes) -> None:
    """Write a file below ``directory``, through no link: an agent chose the path. Raises ``ConfigurationError``."""
    parts = PurePosixPath(view.path).parts
    if not parts or view.path.startswith("/") or any(part in (".", "..") or "\0" in part for part in parts):
        raise ConfigurationError(f"the artifact {view.artifact_id} has a path that is not below a directory")
    if hashlib.sha256(content).hexdigest() != view.sha256:
        raise ConfigurationError(f"the artifact {view.artifact_id} is not what was kept: its hash differs")
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
        where = f"{strip_controls(view.path)!r} below {str(directory)!r}"
        raise ConfigurationError(
            f"{where} cannot be written ({format_reason(error)}); choose an empty directory"
        ) from error


def _enter(folder: int, name: str) -> int:
    """Open the folder within, creating it if needed; ``folder`` is closed when that succeeds."""
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        pass
    inner = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return inner
