"""``hermes-worker skills``: instructions that agents load for kinds of tasks."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_moment
from hermes_worker.cli.list_output import print_entries
from hermes_worker.cli.options import TEXT, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.server import refuse_server_options
from hermes_worker.core.offered_skills import SkillError
from hermes_worker.features.skills.rules import SkillFile
from hermes_worker.features.skills.text_rules import find_problems, find_threats
from hermes_worker.features.skills.workspace_files import ARCHIVE_BYTES_MAX, read_skill_archive, read_skill_folder
from hermes_worker.system.plainfiles import NotPlain, read_plain

if TYPE_CHECKING:
    from hermes_worker.features.skills.schema import SkillSheetObject
    from hermes_worker.schemas.capabilities import SkillObject

_DESCRIPTION_CHARS = 100


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def skills() -> None:
    """List, show, add, remove and check the instructions that agents load for kinds of tasks."""


@skills.command("list")
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_skills(home: Path | None, as_json: bool) -> None:
    """The skills and bundles that a run can be given now."""
    print_entries(
        open_api_client(home).skills(),
        ("NAME", "CATEGORY", "DESCRIPTION"),
        lambda one: (one.name, one.category or "-", flatten_text(one.description, _DESCRIPTION_CHARS) or "-"),
        document=_build_document if as_json else None,
        empty="there are no skills yet",
        ids=(0,),
        whole=(0, 1),
    )


def _build_document(one: SkillObject) -> dict[str, str | None]:
    return {"name": one.name, "category": one.category, "description": one.description}


@skills.command("show", epilog="Example: hermes-worker skills show tidy references/rules.md")
@reachable
@of_tenant
@click.option("--json", "as_json", is_flag=True, help="One JSON object with the text in it.")
@click.argument("name", type=TEXT)
@click.argument("file", type=TEXT, required=False)
def show(home: Path | None, as_json: bool, name: str, file: str | None) -> None:
    """What a skill says of itself, its files and its instructions; with FILE the text of that file alone."""
    sheet = open_api_client(home).skill(name, file=file)
    if as_json:
        click.echo(json.dumps(sheet.model_dump(exclude={"object"})))
        return
    if file is None:
        click.echo("\n".join(f"{label + ':':14}{value}" for label, value in _iterate_facts(sheet)))
        click.echo()
    if sheet.content is None:
        click.echo(f"{sheet.file} is no text", err=True)
    else:
        click.echo(strip_controls(sheet.content).rstrip("\n"))


def _iterate_facts(sheet: SkillSheetObject) -> Iterator[tuple[str, str]]:
    yield "name", sheet.name
    yield "description", flatten_text(sheet.description, 1_024)
    yield "category", sheet.category or "-"
    yield "hash", sheet.hash
    yield "from", f"{sheet.origin}, {format_moment(sheet.changed_at)}"
    for label, values in (("tags", sheet.tags), ("related", sheet.related), ("stands for", sheet.bundle)):
        if values:
            yield label, flatten_text(", ".join(values), 1_024)
    for label, value in (("version", sheet.version), ("license", sheet.license), ("needs", sheet.compatibility)):
        if value:
            yield label, flatten_text(value, 1_024)
    if not sheet.is_usable:
        yield "not usable", "it is disabled, or for another platform"
    for threat in sheet.threats:
        yield "looks like", flatten_text(threat, 1_024)
    for each in sheet.files:
        yield "file", f"{each.path} ({each.size:,} bytes{', executable' if each.is_executable else ''})"


@skills.command("add", epilog="Example: hermes-worker skills add ./tidy --category house")
@reachable
@of_tenant
@click.option("--name", type=TEXT, help="What it is called. Default: as its folder.")
@click.option("--category", type=TEXT, help="One word. Default: what it had, else none.")
@click.argument("path", type=click.Path(path_type=Path))
def add(home: Path | None, name: str | None, category: str | None, path: Path) -> None:
    """Add the skill at PATH, a folder or a ZIP archive, or make it the newest version of the one of its name. It must
    be one of agentskills.io. Runs that began before go on with what they have."""
    folder, files = read_skill(path)
    called = name or folder
    if called is None:
        raise SkillError(f"the files of {str(path)!r} lie in no folder; name the skill with --name")
    kept = open_api_client(home).keep_skill(called, [_as_document(each) for each in files], category=category)
    click.echo(f"{called} {kept.hash[:12]}")


def _as_document(file: SkillFile) -> dict[str, object]:
    text = file.text
    body = {"text": text} if text is not None else {"base64": base64.b64encode(file.body).decode("ascii")}
    return {"path": file.path, "is_executable": file.is_executable, **body}


@skills.command("remove")
@reachable
@of_tenant
@click.argument("name", type=TEXT)
def remove(home: Path | None, name: str) -> None:
    """Take a skill away. Runs that began with it go on with it; one that a folder brought stays away until the folder
    changes."""
    open_api_client(home).remove_skill(name)
    click.echo(f"{name} is removed")


@skills.command("validate", epilog="Example: hermes-worker skills validate ./skills/tidy")
@refuse_server_options
@click.argument("path", type=click.Path(path_type=Path))
def validate(path: Path) -> None:
    """Whether PATH, a folder or a ZIP archive, is a skill as agentskills.io has it; nothing is kept. Ends with 1 where
    it is none."""
    problems = list(_list_problems(path))
    for problem in problems:
        click.echo(flatten_text(problem, 1_024))
    if problems:
        raise click.exceptions.Exit(1)
    click.echo(f"{str(path)!r} is a skill")


def _list_problems(path: Path) -> Iterator[str]:
    try:
        folder, files = read_skill(path)
        yield from find_problems(files, folder=folder)
    except SkillError as error:
        yield str(error)
        return
    for threat in find_threats(files):
        yield f"it looks like an attack: {threat}"


def read_skill(path: Path) -> tuple[str | None, tuple[SkillFile, ...]]:
    """Read the files of a skill in a folder or an archive, and the name of its folder. Raises ``SkillError``."""
    if path.is_dir():
        return path.resolve().name, read_skill_folder(path)
    try:
        body = read_plain(path, bytes_max=ARCHIVE_BYTES_MAX + 1)
    except NotPlain:
        raise SkillError(f"{str(path)!r} is neither a folder nor a file") from None
    except OSError as error:
        raise SkillError(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    return read_skill_archive(body)
