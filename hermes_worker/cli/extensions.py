"""``hermes-worker extensions``: list, enable and disable extensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, common, load_settings
from hermes_worker.cli.screen import flatten_text
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import prepare_home
from hermes_worker.plugins import AvailableExtension, check_extensions, get_plugins_dir, list_available
from hermes_worker.settings import Settings
from hermes_worker.system.plainfiles import replace_text

_VARIABLE = "HERMES_EXTENSIONS"
_BROUGHT_CHARS_MAX = 100


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def extensions() -> None:
    """List, enable and disable what others wrote for Hermes worker."""


@extensions.command("list", epilog="What an extension brings is read from its plugin.yaml; nothing is imported.")
@common
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_extensions(home: Path | None, as_json: bool) -> None:
    """Which extensions there are, which are enabled, and what each would bring."""
    settings = load_settings(home, uses_extensions=False)
    found = list_available(settings.home)
    lost = [name for name in settings.extensions.enabled if all(one.name != name for one in found)]
    print_entries(
        found,
        ("EXTENSION", "STATE", "FROM", "BRINGS"),
        lambda one: (one.name, _describe_state(one, settings), flatten_text(one.place, 50), _describe_contents(one)),
        document=(lambda one: _build_document(one, settings)) if as_json else None,
        empty=f"no extensions: none is installed, and none is in {get_plugins_dir(settings.home)}",
        ids=(0,),
        whole=(3,),
    )
    for name in lost:
        click.echo(f"note: {name!r} is enabled and is not there", err=True)
    for one in found:
        if one.problem:
            click.echo(f"note: {one.name}: {one.problem}", err=True)


@extensions.command(epilog="Its code then runs in every process of this home, with all their rights. Restart them.")
@common
@click.argument("name", type=TEXT)
def enable(home: Path | None, name: str) -> None:
    """Use an extension from the next start on. Tries it first."""
    settings = load_settings(home, uses_extensions=False)
    names = tuple(dict.fromkeys((*settings.extensions.enabled, name)))
    check_extensions(settings, names)
    _write_enabled(settings, names)
    click.echo(f"{name} is enabled; restart the processes of this home to use it")


@extensions.command(
    epilog="Sessions that have its tools keep them in their list; a call of one is answered with an error."
)
@common
@click.argument("name", type=TEXT)
def disable(home: Path | None, name: str) -> None:
    """Use an extension no longer, from the next start on."""
    settings = load_settings(home, uses_extensions=False)
    if name not in settings.extensions.enabled:
        raise ConfigurationError(f"the extension {name!r} is not enabled")
    _write_enabled(settings, tuple(one for one in settings.extensions.enabled if one != name))
    click.echo(f"{name} is disabled; restart the processes of this home")


def _describe_state(one: AvailableExtension, settings: Settings) -> str:
    if one.name in settings.extensions.enabled:
        return "enabled"
    return "unusable" if one.problem else "disabled"


def _describe_contents(one: AvailableExtension) -> str:
    if one.manifest is None:
        return "(it does not say)"
    named = [f"{kind}: {', '.join(names)}" for kind, names in one.manifest.brings.items()]
    return flatten_text("; ".join(named) or one.manifest.summary, _BROUGHT_CHARS_MAX)


def _build_document(one: AvailableExtension, settings: Settings) -> dict[str, Any]:
    said = one.manifest
    return {
        "name": one.name,
        "state": _describe_state(one, settings),
        "from": one.place,
        "version": said.version if said else None,
        "api_version": said.api_version if said else None,
        "description": said.summary if said else None,
        "brings": {kind: list(names) for kind, names in said.brings.items()} if said else None,
        "problem": one.problem or None,
    }


def _write_enabled(settings: Settings, names: Sequence[str]) -> None:
    """Write ``extensions.enabled`` into ``config.yaml``, and nothing else. Raises ``ConfigurationError`` where the file
    cannot be changed without changing more, or where another source sets it."""
    if settings.environ.get(_VARIABLE, "").strip():
        raise ConfigurationError(f"{_VARIABLE} decides which extensions are enabled: set it to {','.join(names)!r}")
    path = settings.home / "config.yaml"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    changed = set_enabled(text, names)
    if changed is None:
        listed = ", ".join(names)
        raise ConfigurationError(
            f"{path} cannot be changed safely: write extensions.enabled: [{listed}] into it yourself"
        )
    prepare_home(settings.home)
    replace_text(path, changed, mode=0o600)


def set_enabled(text: str, names: Sequence[str]) -> str | None:
    """Write a ``config.yaml`` with these extensions enabled and its other lines unchanged; ``None`` where that cannot
    be done line by line. Pure."""
    try:
        before = yaml.safe_load(text) or {}
    except yaml.YAMLError:
        return None
    if not isinstance(before, dict) or not isinstance(before.get("extensions") or {}, dict):
        return None
    wanted: dict[Any, Any] = {**before, "extensions": {**(before.get("extensions") or {}), "enabled": list(names)}}
    ours = f"  enabled: [{', '.join(names)}]"
    lines = text.splitlines()
    for candidate in (_replace_lines(lines, ours), None if "extensions" in before else _append_lines(lines, ours)):
        if candidate is not None and _does_read_as(candidate, wanted):
            return candidate
    return None


def _replace_lines(lines: Sequence[str], ours: str) -> str | None:
    """Replace the lines of ``enabled:`` below ``extensions:``; ``None`` where there are none."""
    start = next((n for n, line in enumerate(lines) if line.split("#")[0].rstrip() == "extensions:"), None)
    if start is None:
        return None
    at = next((n for n in range(start + 1, len(lines)) if lines[n].lstrip().startswith("enabled:")), None)
    if at is None:
        return "\n".join((*lines[: start + 1], ours, *lines[start + 1 :], ""))
    end = at + 1
    while end < len(lines) and lines[end].lstrip().startswith("-"):
        end += 1
    return "\n".join((*lines[:at], ours, *lines[end:], ""))


def _append_lines(lines: Sequence[str], ours: str) -> str:
    return "\n".join((*lines, "extensions:", ours, ""))


def _does_read_as(text: str, wanted: Mapping[Any, Any]) -> bool:
    try:
        return bool(yaml.safe_load(text) == wanted)
    except yaml.YAMLError:
        return False
