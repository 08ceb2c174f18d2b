"""``hermes-worker memory``: what agents remember, for the people whom it concerns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO, TypeVar

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.features.memory.rules import (
    FILES,
    OPERATIONS_MAX,
    MemoryAction,
    MemoryOperation,
    MemoryTarget,
    format_file,
    format_usage,
    parse_file,
)

if TYPE_CHECKING:
    from hermes_worker.features.memory.schema import (
        MemoryChangedObject,
        MemoryObject,
        MemoryVersionObject,
        OneMemory,
        StagedObject,
    )

_Command = TypeVar("_Command", bound=Callable[..., Any])
_TEXT_CHARS = 80
_FILE_BYTES_MAX = 1_000_000


class MemoryFileUnreadable(HermesError):
    """A file is too large for a memory, or is no text."""


def _add_target_option(command: _Command) -> _Command:
    option = click.option(
        "--user",
        "target",
        flag_value=MemoryTarget.USER.value,
        help="What agents know about the user. Default: their own notes.",
    )
    return option(_add_profile_option(command))


def _add_profile_option(command: _Command) -> _Command:
    option = click.option("--profile", type=TEXT, help="Whose memory. Default: that of memory.profile.")
    found: _Command = reachable(of_tenant(option(command)))
    return found


def _choose_target(word: str | None) -> MemoryTarget:
    return MemoryTarget(word) if word else MemoryTarget.MEMORY


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def memory() -> None:
    """Show and change what agents remember, undo changes, and move memories in and out."""


@memory.command("list")
@_add_profile_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_entries(home: Path | None, profile: str | None, as_json: bool) -> None:
    """Both memories entry by entry, and the changes that wait for a person."""
    standing = open_api_client(home).memory(profile=profile)
    found = [*standing.memory.entries, *standing.user.entries, *map(_build_proposed_version, standing.staged)]
    if as_json or found:
        print_entries(
            found,
            ("ID", "OF", "VERSION", "CHANGED", "BY", "TEXT"),
            _format_row,
            document=_build_document if as_json else None,
            ids=(0,),
            whole=(0, 1, 2, 3),
            spared=(3, 2, 4),
        )
    if as_json:
        return
    for target in MemoryTarget:
        click.echo(f"{target.value}: {_format_usage(_pick(standing, target))}", err=True)
    if standing.staged:
        click.echo("'hermes-worker memory approve ID' makes a change that waits; 'decline ID' drops it", err=True)


@memory.command("show")
@_add_profile_option
def show(home: Path | None, profile: str | None) -> None:
    """Both memories whole, as agents read them."""
    standing = open_api_client(home).memory(profile=profile)
    for target in MemoryTarget:
        kept = _pick(standing, target)
        click.echo(f"# {FILES[target]} ({_format_usage(kept)})")
        for version in kept.entries:
            click.echo(f"\n{version.content}")
        click.echo()


@memory.command("add", epilog='Example: hermes-worker memory add --user "Prefers short answers."')
@_add_target_option
@click.argument("content", type=TEXT)
def add(home: Path | None, profile: str | None, target: str | None, content: str) -> None:
    """Remember CONTENT. New conversations know it."""
    _change(home, profile, target, [MemoryOperation(action=MemoryAction.ADD, content=content)])


@memory.command("replace", epilog='Example: hermes-worker memory replace mem_0123456789ab "Prefers long answers."')
@_add_target_option
@click.option("--version", type=click.IntRange(1), help="Only if the entry has this version still.")
@click.argument("entry", type=TEXT)
@click.argument("content", type=TEXT)
def replace(
    home: Path | None, profile: str | None, target: str | None, version: int | None, entry: str, content: str
) -> None:
    """Put CONTENT in the place of ENTRY: its id, or a piece of its text that only it has."""
    _change(home, profile, target, [_build_operation(MemoryAction.REPLACE, entry, version, content)])


@memory.command("remove")
@_add_target_option
@click.option("--version", type=click.IntRange(1), help="Only if the entry has this version still.")
@click.argument("entry", type=TEXT)
def remove(home: Path | None, profile: str | None, target: str | None, version: int | None, entry: str) -> None:
    """Forget ENTRY: its id, or a piece of its text that only it has. 'undo' brings it back."""
    _change(home, profile, target, [_build_operation(MemoryAction.REMOVE, entry, version, None)])


@memory.command("undo")
@_add_target_option
@click.argument("entry_id", type=TEXT, required=False)
def undo(home: Path | None, profile: str | None, target: str | None, entry_id: str | None) -> None:
    """Have an entry be what it was before its last change; without ENTRY_ID the one that was changed last. Undoing that
    does it again."""
    _print_change(open_api_client(home).undo_memory(_choose_target(target), entry_id=entry_id, profile=profile))


@memory.command("history")
@_add_target_option
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.argument("entry_id", type=TEXT, required=False)
def history(
    home: Path | None, profile: str | None, target: str | None, limit: int, as_json: bool, entry_id: str | None
) -> None:
    """Who changed what, in which run, the newest first; of one entry with ENTRY_ID."""
    found = open_api_client(home).memory_history(
        _choose_target(target), entry_id=entry_id, limit=limit, profile=profile
    )
    print_entries(
        found,
        ("VERSION", "WHAT", "WHEN", "BY", "RUN", "TEXT"),
        lambda one: (
            f"{one.entry_id}@{one.version}",
            one.act,
            format_moment(one.at),
            one.author,
            one.run_id or "-",
            _format_text(one),
        ),
        document=_build_document if as_json else None,
        empty="nothing was remembered yet",
        ids=(4,),
        whole=(0, 1, 2),
    )


@memory.command("redact", epilog="Example: hermes-worker memory redact mem_0123456789ab@1")
@_add_target_option
@click.argument("version", type=TEXT)
def redact(home: Path | None, profile: str | None, target: str | None, version: str) -> None:
    """Empty the text of a past VERSION, as 'history' names it. That it was there stays."""
    entry_id, _, number = version.partition("@")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise click.UsageError("name a version as 'hermes-worker memory history' does: mem_0123456789ab@1")
    emptied = open_api_client(home).redact_memory(_choose_target(target), entry_id, int(number))
    click.echo(f"{emptied.entry_id}@{emptied.version} holds no text any more")


@memory.command("approve")
@_add_profile_option
@click.argument("staged_id", type=TEXT)
def approve(home: Path | None, profile: str | None, staged_id: str) -> None:
    """Make a change that waits for a person."""
    _print_change(open_api_client(home).settle_memory(MemoryTarget.MEMORY, staged_id, approve=True))


@memory.command("decline")
@_add_profile_option
@click.argument("staged_id", type=TEXT)
def decline(home: Path | None, profile: str | None, staged_id: str) -> None:
    """Drop a change that waits for a person."""
    _print_change(open_api_client(home).settle_memory(MemoryTarget.MEMORY, staged_id, approve=False))


@memory.command("import", epilog="Example: hermes-worker memory import --user ~/.hermes/memories/USER.md")
@_add_target_option
@click.argument("file", type=click.File("rb"))
def import_file(home: Path | None, profile: str | None, target: str | None, file: BinaryIO) -> None:
    """Add the entries of a MEMORY.md or USER.md that are not there yet, all of them or none. FILE may be '-'."""
    data = file.read(_FILE_BYTES_MAX + 1)
    if len(data) > _FILE_BYTES_MAX:
        raise MemoryFileUnreadable(f"{file.name!r} is larger than a memory can be")
    try:
        entries = parse_file(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise MemoryFileUnreadable(f"{file.name!r} is no UTF-8 text") from error
    if not entries:
        click.echo("there are no entries in it", err=True)
        return
    if len(entries) > OPERATIONS_MAX:
        raise MemoryFileUnreadable(f"{file.name!r} has {len(entries)} entries; at most {OPERATIONS_MAX} come at once")
    wanted = [MemoryOperation(action=MemoryAction.ADD, content=content) for content in entries]
    documents = [operation.build_document() for operation in wanted]
    came = open_api_client(home).change_memory(_choose_target(target), documents, profile=profile)
    click.echo(f"{len(came.changed)} of {len(entries)} entries added; the others were there")


@memory.command("export")
@_add_target_option
@click.argument("file", type=click.File("w", encoding="utf-8", lazy=False), required=False)
def export(home: Path | None, profile: str | None, target: str | None, file: TextIO | None) -> None:
    """Write a memory as the original's MEMORY.md or USER.md; without FILE to the terminal."""
    kept = _pick(open_api_client(home).memory(profile=profile), _choose_target(target))
    contents = [version.content or "" for version in kept.entries]
    click.echo(format_file(contents), file=file, nl=bool(contents))


def _build_operation(action: MemoryAction, entry: str, version: int | None, content: str | None) -> MemoryOperation:
    if entry.startswith("mem_") and len(entry) == len("mem_0123456789ab"):
        return MemoryOperation(action=action, content=content, entry_id=entry, version=version)
    if version is not None:
        raise click.UsageError("--version goes with the id of an entry")
    return MemoryOperation(action=action, content=content, old_text=entry)


def _change(home: Path | None, profile: str | None, target: str | None, operations: Sequence[MemoryOperation]) -> None:
    documents = [operation.build_document() for operation in operations]
    _print_change(open_api_client(home).change_memory(_choose_target(target), documents, profile=profile))


def _print_change(change: MemoryChangedObject) -> None:
    versions = " ".join(f"{entry.entry_id}@{entry.version}" for entry in change.changed)
    click.echo(f"{change.message} {versions}".rstrip())


def _pick(standing: MemoryObject, target: MemoryTarget) -> OneMemory:
    return standing.user if target is MemoryTarget.USER else standing.memory


def _format_usage(kept: OneMemory) -> str:
    return format_usage([version.content or "" for version in kept.entries], kept.limit)


def _build_proposed_version(staged: StagedObject) -> MemoryVersionObject:
    """Return a change that waits for a person as the version that ``--json`` prints of it."""
    from hermes_worker.features.memory.schema import MemoryVersionObject

    return MemoryVersionObject(
        number=staged.number,
        target=staged.target,
        entry_id=staged.staged_id,
        version=1,
        act="propose",
        state="staged",
        content=dump_canonical_json(staged.operations),
        author=staged.author,
        run_id=staged.run_id,
        at=staged.at,
        redacted_at=None,
    )


def _format_row(version: MemoryVersionObject) -> tuple[str, ...]:
    number = "waits" if version.state == "staged" else str(version.version)
    return version.entry_id, version.target, number, format_moment(version.at), version.author, _format_text(version)


def _format_text(version: MemoryVersionObject) -> str:
    if version.content is None:
        return "(redacted)" if version.redacted_at is not None else "-"
    return flatten_text(version.content, _TEXT_CHARS)


def _build_document(version: MemoryVersionObject) -> dict[str, Any]:
    return version.model_dump(exclude={"object"})
