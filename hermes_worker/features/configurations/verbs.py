"""``hermes-worker config``: show settings with the layers that set them, and change ``config.yaml`` and the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from hermes_worker.cli.doctor import check
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import render_table, show_difference
from hermes_worker.cli.options import TEXT, common, load_client_settings, reachable
from hermes_worker.cli.server import find_chosen_server
from hermes_worker.cli.short_ids import complete_id
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.safety.redaction import redact
from hermes_worker.settings import SettingLayer, SettingWithSource, find_setting, list_with_sources, load_settings
from hermes_worker.settings.config_editing import set_value
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.system.plainfiles import replace_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hermes_worker.features.configurations.backend import StoredConfiguration
    from hermes_worker.schemas.settings import SettingObject


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Show, change and check the settings."""


@config.command(name="check", epilog="Nothing is connected to and nothing is created without --fleet.")
@common
@click.option("--fleet", "is_fleet", is_flag=True, help="The configurations in the database, too.")
@click.pass_context
def check_(context: click.Context, home: Path | None, is_fleet: bool) -> int:
    """Check the configuration without connecting to anything; with --fleet those in the database as well."""
    code = int(context.invoke(check, home=home) or 0)
    if not is_fleet:
        return code
    from hermes_worker.cli.api_connection import open_api_client

    wrong = open_api_client(home).told_settings().problems.values()
    click.echo("\n".join(wrong) or "The configurations in the database can be used.")
    return EXIT_FAILED if wrong else code


_FLEET = click.option("--fleet", "is_fleet", is_flag=True, help="The configuration in the database, of all processes.")
_TENANT = click.option("--tenant", type=TEXT, metavar="NAME", help="What is overridden for a tenant.")
_SESSION = click.option("--session", type=TEXT, metavar="ID", help="What is overridden for a session.")


@config.command(
    epilog="Over a server: as a run is accepted there. Example: hermes-worker config show --origin compression"
)
@reachable
@click.argument("prefix", type=TEXT, required=False)
@click.option("--origin", "with_origin", is_flag=True, help="Where each value comes from.")
@click.option("--all", "shows_all", is_flag=True, help="Those that are not set, too.")
@click.option("--fleet", "is_fleet", is_flag=True, help="As a run is accepted with now.")
@click.option("--tenant", type=TEXT, metavar="NAME", help="As a run of this tenant is accepted with now.")
@click.option("--session", type=TEXT, metavar="ID", help="As a run of this session is accepted with now.")
@click.option("--run", type=TEXT, metavar="ID", help="As this run was accepted with.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: key, variable, value, origin, layer.")
def show(
    home: Path | None,
    prefix: str | None,
    with_origin: bool,
    shows_all: bool,
    is_fleet: bool,
    tenant: str | None,
    session: str | None,
    run: str | None,
    as_json: bool,
) -> int:
    """What every setting says, or those whose key begins with PREFIX. Secrets are not shown."""
    told, notes = _list_settings(home, is_fleet, tenant=tenant, session_id=session, run_id=run)
    rows = [row for row in told if row.key.startswith(prefix or "")]
    if not rows:
        raise ConfigurationError(f"no setting begins with {prefix!r}")
    if as_json:
        for row in rows:
            said = {"key": row.key, "variable": row.variable, "value": _format_value(row), "origin": row.origin}
            click.echo(json.dumps({**said, "layer": str(row.layer)}, ensure_ascii=False))
        return 0
    listed = [row for row in rows if shows_all or row.is_set]
    cells = [(row.key, _format_value(row) or "-", *((row.origin,) if with_origin else ())) for row in listed]
    click.echo(render_table(cells, ("KEY", "VALUE", *(("FROM",) if with_origin else ())), whole=(0,)))
    for note in notes:
        click.echo(note, err=True)
    return 0


def _list_settings(
    home: Path | None, is_fleet: bool, **about: str | None
) -> tuple[Sequence[SettingWithSource | SettingObject], list[str]]:
    """List every setting, of this machine or of the chosen server, and notes to print beside."""
    if sum(name is not None for name in about.values()) > 1:
        raise ConfigurationError("give one of --tenant, --session and --run")
    if find_chosen_server() is None and not is_fleet and not any(about.values()):
        settings = load_client_settings(home, needs_servers=False)
        return list(list_with_sources(settings)), [
            f"home {settings.home}, configuration {name_configuration(settings)}"
        ]
    from hermes_worker.cli.api_connection import connect_api
    from hermes_worker.features.configurations.backend import list_settings

    return list_settings(connect_api(home), **about)


def _format_value(row: SettingWithSource | SettingObject) -> str:
    if row.is_secret:
        return "(secret)" if row.is_set else ""
    return redact(row.value or "")


@config.command(name="set", epilog="Example: hermes-worker config set compression.threshold 0.6")
@reachable
@click.argument("key", type=TEXT)
@click.argument("value", type=TEXT)
@_FLEET
@_TENANT
@_SESSION
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def set_(
    home: Path | None, key: str, value: str, is_fleet: bool, tenant: str | None, session: str | None, dry_run: bool
) -> int:
    """Write one setting into config.yaml, or for the fleet, a tenant or a session into the database. Comments stay; a
    value that cannot be used changes nothing. For a session an empty VALUE takes the setting back."""
    variable, kind = find_setting(key)
    if kind.is_secret:
        raise ConfigurationError(f"{key} is a secret, and others can read command lines; write {variable} into .env")
    if (stored := _open_stored(home, is_fleet, tenant, session)) is not None:
        return stored.change(lambda text: _set_value(stored.name, text, key, value), {key: value}, dry_run=dry_run)
    path = load_client_settings(home, needs_servers=False).home / "config.yaml"
    before = _read_text(path)
    return _write(path, before, _set_value(str(path), before, key, value), key, dry_run=dry_run)


def _set_value(place: str, text: str, key: str, value: str) -> str:
    try:
        return set_value(text, key, _parse_value(key, value))
    except ValueError as error:
        raise ConfigurationError(f"{place} cannot be changed: {error}; correct it with 'config edit'") from None


@config.command(epilog="The editor is $VISUAL, else $EDITOR, else vi.")
@reachable
@_FLEET
@_TENANT
def edit(home: Path | None, is_fleet: bool, tenant: str | None) -> int:
    """Edit config.yaml, or the configuration of the fleet or of a tenant. What cannot be used is not written."""
    if (stored := _open_stored(home, is_fleet, tenant, None)) is not None:
        return stored.change(_edit_text, {}, dry_run=False)
    path = load_client_settings(home, needs_servers=False).home / "config.yaml"
    before = _read_text(path)
    after = _edit_text(before)
    if after == before:
        click.echo("nothing changed", err=True)
        return 0
    return _write(path, before, after, None, dry_run=False)


def _edit_text(before: str) -> str:
    after = click.edit(before, extension=".yaml", require_save=True)
    return before if after is None else after


@config.command(name="versions")
@reachable
@_TENANT
@click.option("--text", "number", type=click.IntRange(1), metavar="NUMBER", help="Print this version.")
def versions(home: Path | None, tenant: str | None, number: int | None) -> int:
    """The versions of the configuration of the fleet, or of a tenant, the newest first."""
    return _open_rows(home, tenant, None).print_versions(number)


def _open_stored(
    home: Path | None, is_fleet: bool, tenant: str | None, session: str | None
) -> StoredConfiguration | None:
    if is_fleet + (tenant is not None) + (session is not None) > 1:
        raise ConfigurationError("give one of --fleet, --tenant and --session")
    if not is_fleet and tenant is None and session is None:
        if find_chosen_server() is not None:
            raise ConfigurationError(
                "over a server there is no config.yaml: name what is meant with --fleet, --tenant or --session"
            )
        return None
    return _open_rows(home, tenant, session)


def _open_rows(home: Path | None, tenant: str | None, session: str | None) -> StoredConfiguration:
    from hermes_worker.cli.api_connection import open_api_client
    from hermes_worker.features.configurations.backend import StoredConfiguration

    client = open_api_client(home)
    whole = None if session is None else complete_id(client, session, "session")
    return StoredConfiguration(client, tenant=tenant, session=whole)


@config.command()
@common
def path(home: Path | None) -> None:
    """Print the path of config.yaml."""
    click.echo(load_client_settings(home, needs_servers=False).home / "config.yaml")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def _parse_value(key: str, value: str) -> object:
    """Parse a value as YAML where the setting accepts that; else keep it as text."""
    _, kind = find_setting(key)
    try:
        read = yaml.safe_load(value)
        kind.parse(read)
    except (yaml.YAMLError, ValueError, TypeError, ConfigurationError):
        return value
    return read


def _write(path: Path, before: str, after: str, key: str | None, *, dry_run: bool) -> int:
    """Check the whole configuration, show what changes, and write it at once or not at all. Raises
    ``ConfigurationError``."""
    load_settings(home=path.parent, config_text=after)
    show_difference(before, after, f"{path} (now)", f"{path} (then)")
    if dry_run or before == after:
        return 0
    replace_text(path, after)
    click.echo(
        "Written. Runs that are accepted from now on have what docs/settings.md calls live. Processes read others at a "
        "start: restart them ('hermes-worker up', or the workers, the API and beat one after the other).",
        err=True,
    )
    if key is None:
        return 0
    row = next(row for row in list_with_sources(load_settings(home=path.parent)) if row.key == key)
    if row.layer is not SettingLayer.FILE:
        click.echo(f"It has no effect here: {row.origin} says {_format_value(row)!r} and counts more.", err=True)
        return EXIT_FAILED
    return 0
