"""``hermes-worker data import-hermes``: take over what an installation of Hermes Agent has.

Each part is taken by the verb that takes it alone (``sessions import``, ``memory import``, ``skills add``), so it is
judged and refused as there. Taking a part twice changes nothing: what is here already stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import click

from hermes_worker.cli.hermes_installation import (
    FoundJob,
    TakenPart,
    list_left,
    list_skills,
    merge_config,
    read_jobs,
)
from hermes_worker.cli.job_backend import open_jobs
from hermes_worker.cli.layout import render_table, show_difference
from hermes_worker.cli.options import get_chosen_tenant, load_client_settings, of_tenant, reachable
from hermes_worker.cli.screen import flatten_text
from hermes_worker.cli.server import find_chosen_server
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import load_settings
from hermes_worker.system.plainfiles import replace_text

_MARKS = ("config.yaml", "state.db", "memories", "cron", "skills", ".env")
"""One of them is in every home of the original."""
_MEMORIES = {"MEMORY.md": [], "USER.md": ["--user"]}


@click.command(epilog="Example: hermes-worker data import-hermes ~/.hermes --dry-run")
@reachable
@of_tenant
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--only",
    "chosen",
    type=click.Choice(["config", "sessions", "memory", "skills", "jobs"]),
    multiple=True,
    help="Only this part; may be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Say what there is to take, and take nothing.")
def import_hermes(home: Path | None, directory: Path, chosen: tuple[str, ...], dry_run: bool) -> int:
    """Take over settings, conversations, memory, skills and jobs of Hermes Agent.

    DIRECTORY is the home of that installation, most often ~/.hermes. Says what was taken and what has no counterpart.
    What is here already stays, so it may be repeated.
    """
    if not any((directory / name).exists() for name in _MARKS):
        raise ConfigurationError(f"{str(directory)!r} is no home of Hermes Agent: it has none of {', '.join(_MARKS)}")
    if not dry_run:
        _begin_home(home)
    wanted = chosen or tuple(_PARTS)
    found: list[TakenPart] = []
    for part, take in _PARTS.items():
        if part in wanted:
            try:
                found += take(home, directory.resolve(), dry_run)
            except HermesError as error:
                found.append(TakenPart(part=part, what="-", is_taken=False, why=str(error)))
    found += list_left(directory.resolve()) if not chosen else []
    taken = "would be taken" if dry_run else "taken"
    rows = [(each.part, flatten_text(each.what, 60), taken if each.is_taken else "left") for each in found]
    header, *lines = render_table(rows, ("PART", "WHAT", "BECAME"), whole=(0, 2)).splitlines()
    click.echo(header if found else "nothing was found")
    for line, each in zip(lines, found, strict=True):
        click.echo(line)
        if each.why:
            click.echo(f"    {flatten_text(each.why, 300)}")
    return 0


def _begin_home(home: Path | None) -> None:
    """Make the database of a home on which nothing has run yet, so that there is something to import into."""
    if find_chosen_server() is None and has_no_rows(load_client_settings(home, needs_servers=False)):
        from hermes_worker.cli.roles import migrate  # it takes along what roles are made of

        click.get_current_context().invoke(migrate, home=home, check=False, wait_s=0.0)


def _take_config(home: Path | None, source: Path, is_dry: bool) -> Iterator[TakenPart]:
    if find_chosen_server() is not None or get_chosen_tenant() != DEFAULT_TENANT:
        raise ConfigurationError("settings go into config.yaml of a home; import them there, without --server")
    path = load_client_settings(home, needs_servers=False).home / "config.yaml"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    merged = merge_config(source, before)
    try:
        load_settings(home=path.parent, config_text=merged.text)
    except ConfigurationError as error:  # most often a provider whose key is not here
        merged = merge_config(source, before, without_model=str(error))
        load_settings(home=path.parent, config_text=merged.text)  # raises where they do not go together
    yield from merged.findings
    if merged.text == before:
        return
    show_difference(before, merged.text, f"{path} (now)", f"{path} (then)")
    if not is_dry:
        replace_text(path, merged.text)


def _take_sessions(home: Path | None, source: Path, is_dry: bool) -> Iterator[TakenPart]:
    file = source / "state.db"
    if file.exists():
        finding = TakenPart(part="sessions", what="state.db", is_taken=True)
        yield _use_verb(home, ["sessions", "import", str(file)], finding, is_dry)


def _take_memory(home: Path | None, source: Path, is_dry: bool) -> Iterator[TakenPart]:
    for name, options in _MEMORIES.items():
        file = source / "memories" / name
        if file.exists():
            verb = ["memory", "import", *options, str(file)]
            yield _use_verb(home, verb, TakenPart(part="memory", what=name, is_taken=True), is_dry)


def _take_skills(home: Path | None, source: Path, is_dry: bool) -> Iterator[TakenPart]:
    for category, path in list_skills(source):
        options = ["--category", category] if category else []
        finding = TakenPart(part="skills", what=path.name, is_taken=True)
        yield _use_verb(home, ["skills", "add", *options, str(path)], finding, is_dry)


def _use_verb(home: Path | None, words: Sequence[str], finding: TakenPart, is_dry: bool) -> TakenPart:
    """Use another verb of the command line. What it refuses is a finding that was not taken."""
    if is_dry:
        return finding
    ctx = click.get_current_context()
    command: click.Command = ctx.find_root().command
    for word in words[:2]:
        assert isinstance(command, click.Group)
        command = command.get_command(ctx, word) or command
    place = [*(["--home", str(home)] if home is not None else []), "--tenant", get_chosen_tenant()]
    try:
        # A root of its own: what the verb opens is closed when it ends.
        with command.make_context(words[1], [*place, *words[2:]], obj=ctx.obj) as inner:
            status = command.invoke(inner)
    except (HermesError, click.ClickException) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        return replace(finding, is_taken=False, why=text)
    return replace(finding, is_taken=False, why="see above") if status else finding


def _take_jobs(home: Path | None, source: Path, is_dry: bool) -> Iterator[TakenPart]:
    found = read_jobs(source)
    if not found:
        return
    jobs = None if is_dry else open_jobs(home)
    names = {job.name.lower() for job in jobs.list_all()} if jobs is not None else set()
    for job in found:
        finding = TakenPart(part="jobs", what=job.request.name or job.old_id, is_taken=True, why=_describe_rest(job))
        if jobs is None:
            yield finding
        elif (job.request.name or "").lower() in names:
            yield replace(finding, is_taken=False, why="a job of this name is here already")
        else:
            try:
                made = jobs.create(job.request)
                if not job.is_enabled:
                    jobs.pause(made.job_id, "it was paused when it was imported")
                yield finding
            except HermesError as error:
                yield replace(finding, is_taken=False, why=str(error))


def _describe_rest(job: FoundJob) -> str:
    said = [f"without {', '.join(job.left_out)}"] if job.left_out else []
    if script := job.request.more.get("script"):
        said.append(f"it needs scripts/{script} in the home here")
    if not job.is_enabled:
        said.append("paused")
    return "; ".join(said)


_PARTS: Mapping[str, Callable[[Path | None, Path, bool], Iterator[TakenPart]]] = {
    "config": _take_config,
    "skills": _take_skills,
    "memory": _take_memory,
    "sessions": _take_sessions,
    "jobs": _take_jobs,
}
"""The parts in the order in which they are taken: jobs may name skills."""
