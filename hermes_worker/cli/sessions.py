"""``hermes-worker sessions``: list, search, continue, fork, export and import conversations."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from hermes_worker.cli.api_connection import connect_api
from hermes_worker.cli.layout import format_age, format_count, format_field, format_moment, format_tokens, render_table
from hermes_worker.cli.list_output import ListLayout, add_list_options, print_list
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.run_backend import RunBackend
from hermes_worker.cli.runs import watch_run
from hermes_worker.cli.screen import flatten_text, strip_controls
from hermes_worker.cli.session_backend import open_sessions
from hermes_worker.cli.session_files import read_documents, write_session
from hermes_worker.cli.short_ids import require_id
from hermes_worker.core.call_descriptions import describe_call
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.titles import TITLE_CHARS_MAX, clean_title

if TYPE_CHECKING:
    from hermes_worker.schemas.search import FoundObject
    from hermes_worker.schemas.sessions import MessageObject, SessionObject


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def sessions() -> None:
    """Show, find, carry on, rename, fork and delete conversations."""


@sessions.command("list")
@reachable
@of_tenant
@click.option("--source", type=TEXT, help="Of this kind of source: api, cli, cron, webhook.")
@click.option("--children", is_flag=True, help="Those of delegated work, too.")
@click.option("--archived", is_flag=True, help="Those that were put away, and no others.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@add_list_options
def list_sessions(home: Path | None, children: bool, limit: int, output: str | None, **more: Any) -> None:
    """Conversations, the one with the newest activity first."""
    filters = {name: value for name, value in {"include_children": children, **more}.items() if value}
    print_list(open_sessions(home).load_page(limit, filters), output, _SESSIONS)


@sessions.command("show")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--messages", "has_messages", is_flag=True, help="What was said, too.")
@click.option("--json", "as_json", is_flag=True, help="JSON; messages one per line behind it.")
def show(home: Path | None, session: str, has_messages: bool, as_json: bool) -> None:
    """What a conversation is and came to. SESSION is an id or the beginning of one, a name, or a title."""
    backend = open_sessions(home)
    found = backend.find(session)
    if as_json:
        click.echo(json.dumps(found.model_dump(by_alias=True)))
    else:
        width = max(map(len, _SHOWN))
        for name in _SHOWN:
            value = format_moment(found[name]) if name == "last_active" else format_field(name, found[name])
            if value != "-":
                click.echo(f"{name.ljust(width)}  {strip_controls(value)}")
        cached = found.cache_read_tokens + found.cache_write_tokens
        click.echo(f"{'usage'.ljust(width)}  {format_tokens(found.input_tokens, cached, found.output_tokens)}")
    for message in backend.client.messages(found.id) if has_messages else ():
        click.echo(json.dumps(message.model_dump()) if as_json else _render_message(message))


@sessions.command("search", epilog='Example: hermes-worker sessions search "deploy OR release"')
@reachable
@of_tenant
@click.argument("query", type=TEXT)
@click.option(
    "--sort", type=OneOf(["hits", "newest", "oldest"]), default="hits", show_default=True, help="Which first."
)
@click.option("--role", type=OneOf(["user", "assistant", "tool"]), help="Whose messages. Default: user and assistant.")
@click.option("--in", "session", type=TEXT, metavar="SESSION", help="Look in this conversation only.")
@click.option("--children", is_flag=True, help="In those of delegated work, too.")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="At most so many messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def search(home: Path | None, query: str, session: str | None, as_json: bool, **filters: Any) -> None:
    """Find what was said. Words must all be there; OR, NOT, "phrases" and begin* work."""
    backend = open_sessions(home)
    said = {"include_children" if name == "children" else name: value for name, value in filters.items() if value}
    if session is not None:
        said["session_id"] = backend.find(session).id
    found = backend.client.search_sessions(query, **said)
    if as_json:
        for each in found.data:
            click.echo(json.dumps(each.model_dump()))
    elif found.data:
        rows = [_format_hit(each) for each in found.data]
        header = ("TEXT", "SAID BY", "WHEN", "CONVERSATION", "MESSAGE", "SESSION")
        click.echo(render_table(rows, header, ids=(5,), whole=(1, 2, 4), spared=(3, 1)))
    if not found.is_complete:
        click.echo("not all was looked through: older messages of a common word, or what is not indexed yet", err=True)


@sessions.command("lineage")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@add_list_options
def lineage(home: Path | None, session: str, output: str | None) -> None:
    """A conversation, what it was forked from, and the forks of all of them, oldest first."""
    backend = open_sessions(home)
    print_list(backend.client.session_lineage(backend.find(session).id), output, _SESSIONS)


@sessions.command("rename", epilog='Example: hermes-worker sessions rename run_0123... "The parser"')
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.argument("title", type=TEXT)
def rename(home: Path | None, session: str, title: str) -> None:
    """Call a conversation TITLE; an empty one takes the title away."""
    backend = open_sessions(home)
    changed = backend.client.change_session(backend.find(session).id, title=clean_title(title))
    click.echo(f"{changed.id}  {strip_controls(changed.title or '-')}")


@sessions.command("end")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--reason", type=TEXT, default="ended", show_default=True, help="A remark of up to 40 characters.")
def end(home: Path | None, session: str, reason: str) -> None:
    """Note that a conversation is over. The next turn in it takes the note back."""
    backend = open_sessions(home)
    reason = clean_title(reason)[:40] or "ended"
    changed = backend.client.change_session(backend.find(session).id, end_reason=reason)
    click.echo(f"{changed.id}  {strip_controls(changed.end_reason or '-')}")


@sessions.command("archive")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--undo", is_flag=True, help="Bring it back.")
def archive(home: Path | None, session: str, undo: bool) -> None:
    """Put a conversation away: it is kept and found, and not listed."""
    backend = open_sessions(home)
    changed = backend.client.change_session(backend.find(session).id, archived=not undo)
    click.echo(f"{changed.id}  {'back' if undo else 'archived'}")


@sessions.command("fork", epilog="Example: hermes-worker sessions fork run_0123... --at 12")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--title", type=TEXT, help="What the fork is called. Default: that of the source, and a number.")
@click.option("--at", "message_id", type=click.IntRange(0), help="The last message to keep, 0 for none. Default: all.")
def fork(home: Path | None, session: str, title: str | None, message_id: int | None) -> None:
    """Begin a conversation with a copy of another's messages. Prints its name."""
    backend = open_sessions(home)
    wanted = {"title": clean_title(title or "") or None, "message_id": message_id}
    given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    click.echo(backend.client.fork_session(backend.find(session).id, **given).id)


@sessions.command("export", epilog="Example: hermes-worker sessions export --out sessions.jsonl")
@reachable
@of_tenant
@click.argument("session", type=TEXT, nargs=-1)
@click.option("--lineage", "has_lineage", is_flag=True, help="What they were forked from and the forks, too.")
@click.option("--source", type=TEXT, help="Without SESSION: those of this kind of source.")
@click.option("--out", type=click.Path(path_type=Path), help="A new file. Default: standard output.")
def export(
    home: Path | None, session: tuple[str, ...], has_lineage: bool, source: str | None, out: Path | None
) -> None:
    """Write conversations with their messages as JSON Lines; without SESSION all that are listed, oldest first."""
    backend = open_sessions(home)
    if session:
        known = [backend.find(each) for each in session]
        found = [one for each in known for one in (backend.client.session_lineage(each.id) if has_lineage else [each])]
    else:
        found = backend.load_page(_EXPORTED_MAX, {"source": source} if source else {})[::-1]
    by_id = {one.id: one for one in found}
    with nullcontext(sys.stdout) if out is None else _create_file(out) as file:
        for one in by_id.values():
            write_session(file, one, backend.client.messages(one.id))
    click.echo(format_count(len(by_id), "session"), err=True)


@sessions.command("import", epilog="Example: hermes-worker sessions import ~/.hermes/state.db")
@reachable
@of_tenant
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def import_(home: Path | None, file: Path) -> int:
    """Make sessions of the conversations in FILE: JSON Lines of 'sessions export' or of Hermes Agent's export, or its
    database state.db. What is here already stays as it is."""
    if not file.is_file():
        raise click.UsageError(f"there is no file {str(file)!r}")
    made, refused = 0, 0
    for number, told in enumerate(open_sessions(home).import_all(read_documents(file)), start=1):
        if isinstance(told, str):
            made += 1
            click.echo(strip_controls(told))
        else:
            refused += 1
            click.echo(f"session {number}: {strip_controls(str(told))}", err=True)
    click.echo(f"{made} sessions imported, {refused} not", err=True)
    return 1 if refused and not made else 0


@sessions.command("prune", epilog="Example: hermes-worker sessions prune --older-than 90 --source cron --yes")
@reachable
@of_tenant
@click.option("--older-than", "days", type=click.FloatRange(0), default=90, show_default=True, help="Days since then.")
@click.option("--source", type=TEXT, help="Of this kind of source only.")
@click.option("--reason", type=TEXT, help="That ended with this remark only.")
@click.option("--archived", is_flag=True, help="Those that were put away, and no others.")
@click.option("--yes", is_flag=True, help="Delete them; without it they are only shown.")
def prune(home: Path | None, days: float, reason: str | None, yes: bool, **filters: Any) -> None:
    """Delete conversations that ended a while ago, with their runs. One that goes on, or is held, stays."""
    backend = open_sessions(home)
    before = time.time() - days * 86_400
    listed = backend.load_page(_EXPORTED_MAX, {name: value for name, value in filters.items() if value})
    ended = [one for one in listed if not one.is_at_work and (one.ended_at or before) < before]
    chosen = [one for one in ended if reason is None or one.end_reason == reason]
    if not yes:
        print_list(chosen, None, _SESSIONS)
        click.echo(f"would delete {format_count(len(chosen), 'session')}; --yes does it", err=True)
        return
    kept = 0
    for one in chosen:
        try:
            backend.client.remove_session(one.id)
        except UnavailableError:
            raise
        except HermesError as error:
            kept += 1
            click.echo(f"{one.id} stays: {strip_controls(str(error))}", err=True)
    click.echo(f"deleted {len(chosen) - kept} of {format_count(len(chosen), 'session')}")


@sessions.command("delete")
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(home: Path | None, session: str, yes: bool) -> None:
    """Delete a conversation with its runs and what they delegated. Forks stay."""
    backend = open_sessions(home)
    found = backend.find(session)
    if not yes:
        named = strip_controls(found.title or "without a title")
        click.confirm(
            f"Delete {found.id} ({named}, {format_count(found.message_count, 'message')})?", abort=True, err=True
        )
    backend.client.remove_session(found.id)
    click.echo(f"deleted {found.id}")


@sessions.command("resume", epilog='Example: hermes-worker sessions resume "The parser" "Go on with the tests"')
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.argument("prompt", type=TEXT)
@click.option("--detach", is_flag=True, help="Do not follow the run; print its id.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
@click.pass_context
def resume(ctx: click.Context, home: Path | None, session: str, prompt: str, detach: bool, as_json: bool) -> int:
    """Take the next turn in a conversation. PROMPT is what you say; - reads it from standard input."""
    from hermes_worker.cli.submit import submit

    known_as = open_sessions(home).find(session).id
    ended: int = ctx.invoke(submit, home=home, prompt=prompt, session=known_as, watch=not detach, as_json=as_json)
    return ended


_EXPORTED_MAX = 100_000
_SHOWN = (
    *(
        "id",
        "title",
        "source",
        "model",
        "started_at",
        "last_active",
        "ended_at",
        "end_reason",
        "archived_at",
        "is_at_work",
    ),
    *("message_count", "tool_call_count", "api_call_count", "cache_read_tokens"),
    *("estimated_cost_usd", "parent_session_id", "preview"),
)


def _create_file(path: Path) -> TextIO:
    """Create a file for this user alone. Raises ``click.UsageError`` where there is one."""
    try:
        return os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8")
    except FileExistsError:
        raise click.UsageError(f"{str(path)!r} is there already; name a new file") from None


_SESSIONS: ListLayout[SessionObject] = ListLayout(
    header=("TITLE", "STATUS", "ACTIVE", "MESSAGES", "SOURCE", "SESSION"),
    row=lambda each, format_time: (
        flatten_text(each.title or each.preview or "-", TITLE_CHARS_MAX),
        "at work" if each.is_at_work else "-",
        format_time(each.last_active),
        str(each.message_count),
        each.source or "-",
        each.id,
    ),
    document=lambda each: each.model_dump(by_alias=True),
    name=lambda each: each.id,
    empty="there are no conversations",
    ids=(5,),
    whole=(1, 2),
    spared=(4, 3),
)


def _format_hit(each: FoundObject) -> tuple[str, ...]:
    title = flatten_text(each.title or "-", TITLE_CHARS_MAX)
    return (
        strip_controls(each.snippet),
        each.role,
        format_age(each.timestamp),
        title,
        str(each.message_id),
        each.session_id,
    )


def _render_message(message: MessageObject) -> str:
    content = message.content
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False) if content else ""
    functions = [call["function"] for call in message.tool_calls or ()]
    called = [f"-> {each['name']}  {describe_call(each['name'], each['arguments'])}" for each in functions]
    said = "\n".join(part for part in (text, *called) if part)
    who = message.role if message.tool_name is None else f"{message.role} {message.tool_name}"
    return strip_controls(f"\n[{message.id}] {who}, {format_moment(message.timestamp)}\n{said}")


@sessions.command(epilog='Example: hermes-worker sessions compress run_0123... --focus "the parser"')
@reachable
@of_tenant
@click.argument("session", type=TEXT)
@click.option("--focus", type=TEXT, default="", help="The topic that the summary should keep most of.")
@click.option("--detach", is_flag=True, help="Do not wait for the summary; print the run's id.")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable output.")
def compress(home: Path | None, session: str, focus: str, detach: bool, as_json: bool) -> int:
    """Summarise the older part of a session now. The transcript stays; a model is shown the summary in its place."""
    asked = connect_api(home, begins_work=True)
    run_id = asked.client.compress_session(require_id(asked.client, session, "session"), focus=focus)
    if detach:
        click.echo(json.dumps({"run_id": run_id}) if as_json else run_id)
        return 0
    return watch_run(RunBackend(asked), run_id, as_json=as_json)
