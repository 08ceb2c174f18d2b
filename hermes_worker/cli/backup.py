"""``hermes-worker data backup`` and ``restore``: save a home in one file, and restore one."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from hermes_worker.cli.copies import describe_copy
from hermes_worker.cli.layout import format_count
from hermes_worker.cli.options import common, format_home_option, load_client_settings
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.archives import DATABASE, RESTORING, make_staging, put_in_place, unpack, write_archive
from hermes_worker.local.paths import HomeBusy, hold_home, is_held, list_spellings, prepare_home
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.restore_detection import Epoch, mark_epoch, remove_copy_mark
from hermes_worker.store.whole_database import copy_sqlite, merge_journal, require_intact
from hermes_worker.system import faults

_GB = 1024**3


@click.command(epilog="The archive holds the home's keys and passwords. Only you can read it; keep it like a password.")
@common
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--without-workspaces", is_flag=True, help="Leave out the directories that sessions work in.")
@click.option("--force", is_flag=True, help="Replace ARCHIVE if it is there.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def backup(home: Path | None, archive: Path, without_workspaces: bool, force: bool, as_json: bool) -> None:
    """Write everything of a home into ARCHIVE, also while runs are at work."""
    settings = _load_embedded_settings(home)
    database = settings.home / DATABASE
    if not database.exists():
        raise ConfigurationError(f"nothing has run on {str(settings.home)!r} yet; there is nothing to back up")
    # As the file system sees it: 'HOME/../b.tar' is outside, and a link into the home is inside.
    target = archive.parent.resolve() / archive.name
    if target.is_relative_to(settings.home.resolve()):
        raise ConfigurationError("ARCHIVE is in the home that it is to save; name a file outside")
    prepare_home(settings.home)
    with make_staging(settings.home, "backup") as staged:
        copy_sqlite(database, staged / DATABASE)
        found = write_archive(
            target, settings.home, staged / DATABASE, has_workspaces=not without_workspaces, replaces=force
        )
    if as_json:
        click.echo(json.dumps({"archive": str(target), **asdict(found)}))
        return
    note = f"; {found.left_out} links and special files were left out" if found.left_out else ""
    click.echo(f"{target}: {format_count(found.files, 'file')}, {format_count(found.bytes, 'byte')}{note}")


@click.command(
    epilog="What was due or at work when the backup was made may have been done since. So calls of tools that must not "
    "be repeated get an unknown outcome, and deliveries that were not settled say that they may be duplicates."
)
@common
@click.argument("archive", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--force", is_flag=True, help="Replace what the home holds.")
@click.option("--mark-epoch", is_flag=True, help="Restore nothing: only say that the database was set back.")
@click.option(
    "--original-gone",
    is_flag=True,
    help="Say that nothing works any more on what the archive was made of: then deliveries, hooks, chats, jobs and "
    "folders outside the home are used again. Without ARCHIVE and --mark-epoch, of a copy that was restored before.",
)
@click.option(
    "--nothing-since",
    is_flag=True,
    help="Say that nothing was at work on the original after the backup: then no model is told of doubts, and no call "
    "asks for them.",
)
@click.option("--size-max-gb", type=click.IntRange(1), default=64, show_default=True, help="Refuse larger archives.")
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def restore(
    home: Path | None,
    archive: Path | None,
    force: bool,
    mark_epoch: bool,
    original_gone: bool,
    nothing_since: bool,
    size_max_gb: int,
    as_json: bool,
) -> None:
    """Make a home from ARCHIVE, or mark a database that its server set back. It is a copy then: it delivers nothing,
    fires no job and opens no folder outside the home until you say that the original is gone."""
    if (mark_epoch and archive is not None) or not (mark_epoch or archive or original_gone):
        raise click.UsageError("give ARCHIVE, --mark-epoch or --original-gone")
    settings = load_client_settings(home)
    if not mark_epoch and archive is None:
        _confirm_original_gone(settings, as_json)
        return
    if archive is None:
        found = _mark_epoch(settings, original_gone, not nothing_since)
    else:
        said = {"is_original_gone": original_gone, "may_have_worked": not nothing_since}
        found = _restore(_load_embedded_settings(home), archive, force, size_max_gb, **said)
    if not original_gone:
        click.echo(f"this is a copy: {describe_copy(settings.home)}", err=True)
    if as_json:
        click.echo(json.dumps(asdict(found)))
        return
    click.echo(
        f"marked: {found.calls_in_doubt} calls, {found.deliveries_in_doubt} deliveries and "
        f"{found.executions_in_doubt} scripts in doubt, the claims of {found.claims_given_up} workers given up"
    )


def _confirm_original_gone(settings: Settings, as_json: bool) -> None:
    """Let the copy work in place of the original, also while a stack is at work: what waits as rows continues within
    seconds."""
    from hermes_worker.wiring import open_database

    with closing(open_database(settings)) as database:
        was_copy = remove_copy_mark(database)
    if as_json:
        click.echo(json.dumps({"was_copy": was_copy}))
    elif was_copy:
        click.echo("no copy any more: deliveries, hooks, chats, jobs and folders outside the home are used again")
    else:
        click.echo("this was no copy; nothing was changed")


def _mark_epoch(settings: Settings, is_original_gone: bool, may_have_worked: bool) -> Epoch:
    from hermes_worker.store.home_rows import convert_rows
    from hermes_worker.wiring import open_database

    if settings.database.url is None and is_held(settings.home):
        raise HomeBusy(f"hermes-worker runs on {str(settings.home)!r}; stop it first")
    with closing(open_database(settings)) as database:
        found = mark_epoch(database, is_original_gone=is_original_gone, may_have_worked=may_have_worked)
        convert_rows(database)
        return found


def _restore(settings: Settings, archive: Path, force: bool, size_max_gb: int, **said: bool) -> Epoch:
    from hermes_worker.local.paths import build_embedded_database_url
    from hermes_worker.store.build import build_sealer
    from hermes_worker.store.home_rows import convert_rows
    from hermes_worker.store.migrate import migrate
    from hermes_worker.store.text_keys import check_keys as begin_sealing

    home = settings.home
    faults.arm_faults(settings.faults)
    if (home / DATABASE).exists() and not force:
        raise ConfigurationError(
            f"{str(home)!r} holds a database; restore into another --home, or replace everything with --force"
        )
    with hold_home(home), make_staging(home, RESTORING) as staged:
        unpack(archive, staged, bytes_max=size_max_gb * _GB)
        require_intact(staged / DATABASE)
        with closing(
            Database(build_embedded_database_url(staged), sealer=build_sealer(settings), homes=list_spellings(home))
        ) as database:
            migrate(database)
            begin_sealing(database)
            found = mark_epoch(database, are_workers_gone=True, **said)
            convert_rows(database)
        for ending in ("-wal", "-shm"):
            (staged / f"{DATABASE}{ending}").unlink(missing_ok=True)
        merge_journal(home / DATABASE)
        put_in_place(staged, home)
    click.echo(f"restored; 'hermes-worker up{format_home_option(home)}' carries on from here", err=True)
    return found


def _load_embedded_settings(home: Path | None) -> Settings:
    """Load the settings of a home. Raises ``ConfigurationError`` when the state is on a server, which has tools of its
    own."""
    settings = load_client_settings(home)
    if settings.database.url is not None:
        raise ConfigurationError(
            "the state is not in the home but where HERMES_DATABASE_URL says: save it with the tools of its server "
            "(docs/backup.md), and after a restore run 'hermes-worker data restore --mark-epoch'"
        )
    return settings
