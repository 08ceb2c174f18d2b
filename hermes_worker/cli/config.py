"""``hermes-worker config``: what the settings say and where from, and changes of ``config.yaml``."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

import click
import yaml

from hermes_worker.cli.doctor import check
from hermes_worker.cli.entry import EXIT_FAILED
from hermes_worker.cli.layout import table
from hermes_worker.cli.options import TEXT, client_settings, common
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.safety.redaction import redact
from hermes_worker.settings import SettingLayer, ToldSetting, load, setting_of, told_settings
from hermes_worker.settings.editing import with_value
from hermes_worker.settings.shaping import configuration_of
from hermes_worker.system.plainfiles import replace_text


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def config() -> None:
    """Show, change and check the settings."""


config.add_command(check)


@config.command(epilog="Example: hermes-worker config show --origin compression")
@common
@click.argument("prefix", type=TEXT, required=False)
@click.option("--origin", "with_origin", is_flag=True, help="Where each value comes from.")
@click.option("--all", "shows_all", is_flag=True, help="Those that are not set, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line: key, variable, value, origin.")
def show(home: Path | None, prefix: str | None, with_origin: bool, shows_all: bool, as_json: bool) -> int:
    """What every setting says, or those whose key begins with PREFIX. Secrets are not shown."""
    settings = client_settings(home, needs_servers=False)
    rows = [row for row in told_settings(settings) if row.key.startswith(prefix or "")]
    if not rows:
        raise ConfigurationError(f"no setting begins with {prefix!r}")
    if as_json:
        for row in rows:
            told = {"key": row.key, "variable": row.variable, "value": _shown(row), "origin": row.origin}
            click.echo(json.dumps(told, ensure_ascii=False))
        return 0
    listed = [row for row in rows if shows_all or row.is_set]
    cells = [(row.key, _shown(row) or "-", *((row.origin,) if with_origin else ())) for row in listed]
    click.echo(table(cells, ("KEY", "VALUE", *(("FROM",) if with_origin else ())), whole=(0,)))
    click.echo(f"home {settings.home}, configuration {configuration_of(settings)}", err=True)
    return 0


def _shown(row: ToldSetting) -> str:
    if row.is_secret:
        return "(secret)" if row.is_set else ""
    return redact(row.value or "")


@config.command(name="set", epilog="Example: hermes-worker config set compression.threshold 0.6")
@common
@click.argument("key", type=TEXT)
@click.argument("value", type=TEXT)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
def set_(home: Path | None, key: str, value: str, dry_run: bool) -> int:
    """Write one setting into config.yaml. Comments stay; a value that cannot be used changes nothing."""
    variable, kind = setting_of(key)
    if kind.is_secret:
        raise ConfigurationError(f"{key} is a secret, and others can read command lines; write {variable} into .env")
    settings = client_settings(home, needs_servers=False)
    path = settings.home / "config.yaml"
    before = _text_of(path)
    try:
        after = with_value(before, key, _typed(key, value))
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be changed: {error}; correct it with 'config edit'") from None
    return _written(path, before, after, key, dry_run=dry_run)


@config.command(epilog="The editor is $VISUAL, else $EDITOR, else vi.")
@common
def edit(home: Path | None) -> int:
    """Edit config.yaml. What cannot be used is not written."""
    path = client_settings(home, needs_servers=False).home / "config.yaml"
    before = _text_of(path)
    after = click.edit(before, extension=".yaml", require_save=True)
    if after is None or after == before:
        click.echo("nothing changed", err=True)
        return 0
    return _written(path, before, after, None, dry_run=False)


@config.command()
@common
def path(home: Path | None) -> None:
    """Where config.yaml is."""
    click.echo(client_settings(home, needs_servers=False).home / "config.yaml")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from None


def _typed(key: str, value: str) -> object:
    """As YAML would read it where the setting takes that; else as text."""
    _, kind = setting_of(key)
    try:
        read = yaml.safe_load(value)
        kind.parse(read)
    except (yaml.YAMLError, ValueError, TypeError, ConfigurationError):
        return value
    return read


def _written(path: Path, before: str, after: str, key: str | None, *, dry_run: bool) -> int:
    """Check the whole, show what changes, and write it at once or not at all. Raises ``ConfigurationError``."""
    load(home=path.parent, config_text=after)
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"{path} (now)", f"{path} (then)", lineterm="", n=1
    )
    click.echo(redact("\n".join(lines)) or "nothing changes")
    if dry_run or before == after:
        return 0
    replace_text(path, after)
    click.echo(
        "Written. Processes read their settings when they start: restart them ('hermes-worker up', or the workers, the "
        "API and beat one after the other). Runs record the configuration they were accepted under.",
        err=True,
    )
    if key is None:
        return 0
    row = next(row for row in told_settings(load(home=path.parent)) if row.key == key)
    if row.layer is not SettingLayer.FILE:
        click.echo(f"It has no effect here: {row.origin} says {_shown(row)!r} and counts more.", err=True)
        return EXIT_FAILED
    return 0
