"""``hermes-worker approvals``: list what waits for a person, answer it, and list past answers; and ``runs approve``,
``deny`` and ``answer``, which answer what one run asks."""

from __future__ import annotations

import json
import sys
import time
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hermes_worker.cli.api_connection import open_api_client
from hermes_worker.cli.layout import format_age, format_duration
from hermes_worker.cli.list_output import FormatTime, ListLayout, add_list_options, print_entries, print_list
from hermes_worker.cli.options import TEXT, OneOf, of_tenant, reachable
from hermes_worker.cli.run_backend import RunBackend, open_backend
from hermes_worker.cli.screen import colour_status, flatten_text
from hermes_worker.cli.wording import show_unprintable
from hermes_worker.core.call_descriptions import describe_call
from hermes_worker.core.consent import render_lines, summarise
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.run import WaitKind
from hermes_worker.core.titles import TITLE_CHARS_MAX
from hermes_worker.safety.approvals import CHOICE_WORDS, ApprovalChoice, parse_choice

if TYPE_CHECKING:
    from hermes_worker.schemas.approvals import DecisionObject, WaitObject

_LIST_MAX = 500
_ASKED_CHARS = 80
_PRINTED = (
    *("id", "code", "run_id", "title", "tenant", "kind", "tool", "created_at", "expires_at", "command", "directory"),
    *("description", "pattern_keys", "question", "choices"),
)
"""The fields of an open question that ``--json`` prints, in this order."""


class _JsonObject(click.ParamType):  # type: ignore[type-arg]
    """A JSON object as text, or in a file that is named after ``@``; ``@-`` is standard input."""

    name = "JSON"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        try:
            with click.open_file(value[1:], encoding="utf-8") if value.startswith("@") else StringIO(value) as file:
                found = json.load(file)
        except (OSError, ValueError, RecursionError) as error:
            self.fail(str(error), param, ctx)
        return found if isinstance(found, dict) else self.fail("it is no JSON object", param, ctx)


_arguments_option = click.option(
    "--arguments",
    type=_JsonObject(),
    metavar="JSON|@FILE",
    help="With once: run the call with these arguments instead of its own; @- reads them from standard input.",
)
_KINDS = OneOf([WaitKind.APPROVAL.value, WaitKind.INPUT.value])


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def approvals() -> None:
    """List what waits for a person, answer it, and see who answered what."""


@approvals.command(
    "list", epilog="Example: hermes-worker approvals list   then: hermes-worker approvals answer 17 once"
)
@reachable
@of_tenant
@click.option("--kind", type=_KINDS, help="Only approvals of commands, or only questions (input).")
@click.option("--all-tenants", is_flag=True, help="Those of all tenants.")
@click.option("--limit", type=click.IntRange(1, _LIST_MAX), default=100, show_default=True, help="At most so many.")
@click.option("-o", "output", type=click.Choice(["wide"]), help="wide: the whole of what each asks, below its line.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def list_open(
    home: Path | None, kind: str | None, all_tenants: bool, limit: int, output: str | None, as_json: bool
) -> None:
    """What nobody has answered, the oldest first."""
    found = open_api_client(home).approvals(kind=kind, all_tenants=all_tenants, limit=limit)
    if found and output == "wide" and not as_json:
        click.echo("\n\n".join(map(_render_whole, found)))
        return
    print_entries(
        found,
        ("ID", "CODE", "ASKS", "OF", "WAITS", "ENDS", "CHOICES", "TENANT", "RUN", "IN"),
        _format_open,
        document=(lambda line: {name: line[name] for name in _PRINTED}) if as_json else None,
        empty="nothing waits for a person",
        ids=(8,),
        whole=(0, 1, 4, 5),
        spared=(7, 6, 4, 8, 1, 9),
    )
    if found and not as_json:
        click.echo("'hermes-worker approvals show ID' shows one whole, with every danger of a command", err=True)


@approvals.command(epilog="Example: hermes-worker approvals show 17")
@reachable
@of_tenant
@click.argument("named", metavar="ID", type=TEXT)
def show(home: Path | None, named: str) -> None:
    """The whole of what one asks, and every danger of it. ID is the number or the code that 'approvals list' shows."""
    click.echo(_render_whole(_open_question(open_backend(home), named)))


@approvals.command(epilog="Example: hermes-worker approvals answer 17 deny --reason 'not on this machine'")
@reachable
@of_tenant
@click.argument("named", metavar="ID", type=TEXT)
@click.argument("text", metavar="ANSWER", type=TEXT)
@click.option("--reason", type=TEXT, help="For the model, with the answer to an approval.")
@_arguments_option
def answer(home: Path | None, named: str, text: str, reason: str | None, arguments: dict[str, Any] | None) -> None:
    """Answer what waits: an approval with once, session, always or deny, a question with the number of a choice or with
    words. ID is the number or the code that 'approvals list' shows; the first answer counts. A command that the list
    shows in part is shown whole first, and a terminal asks whether that is what you allow."""
    backend = open_backend(home)
    meant = _open_question(backend, named)
    if (
        meant.kind is WaitKind.APPROVAL
        and arguments is None
        and _parse_choice(text) != ApprovalChoice.DENY.value
        and not summarise(*_find_text(meant))[1]
    ):
        click.echo(_render_whole(meant), err=True)
        if sys.stdin.isatty():
            click.confirm("Allow all of it?", abort=True, err=True)
    if meant.kind is WaitKind.APPROVAL:
        choice = _parse_choice(text)
        backend.client.approve(meant.run_id, choice, reason=reason, arguments=arguments, wait_id=meant.id)
    elif reason is not None or arguments is not None:
        raise click.UsageError("--reason and --arguments are for approvals; a question is answered with ANSWER alone")
    else:
        backend.client.answer(meant.run_id, text, wait_id=meant.id)
    click.echo(f"{meant.run_id} {colour_status(backend.client.run(meant.run_id).status)}")


@approvals.command()
@reachable
@of_tenant
@click.option("--kind", type=_KINDS, help="Only approvals of commands, or only questions (input).")
@click.option("--before", type=click.IntRange(1, 2**63 - 1), metavar="ID", help="What was asked before this one.")
@click.option("--all-tenants", is_flag=True, help="Those of all tenants.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most so many.")
@add_list_options
def history(
    home: Path | None, kind: str | None, before: int | None, all_tenants: bool, limit: int, output: str | None
) -> None:
    """List closed questions, the newest first: who answered what, and which were closed without an answer."""
    asked: dict[str, Any] = {"kind": kind, "before": before, "limit": min(limit, _LIST_MAX)}
    told = open_api_client(home).decisions(**asked, all_tenants=all_tenants or None)
    print_list(list(islice(told, limit)), output, _CLOSED)


_wait_option = click.option(
    "--wait-id",
    type=click.IntRange(1, 2**63 - 1),
    help="Which question you saw: ID of 'approvals list'. Not needed where the run asks one thing alone; to allow a "
    "command without it, a terminal shows it whole and asks you.",
)


@click.command("approve", epilog="Example: hermes-worker runs approve run_0123... --wait-id 17 --choice session")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--choice", type=OneOf(["once", "session", "always"]), default="once", show_default=True)
@_arguments_option
@_wait_option
def approve_run(home: Path | None, run_id: str, wait_id: int | None, **answer: Any) -> None:
    """Allow the command that a run waits to be allowed."""
    _answer_approval(home, run_id, wait_id, **answer)


@click.command(
    "deny", epilog="Example: hermes-worker runs deny run_0123... --wait-id 17 --reason 'not on this machine'"
)
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.option("--reason", type=TEXT, help="For the model.")
@_wait_option
def deny_run(home: Path | None, run_id: str, reason: str | None, wait_id: int | None) -> None:
    """Refuse the command that a run waits to be allowed."""
    _answer_approval(home, run_id, wait_id, choice="deny", reason=reason)


@click.command("answer", epilog="Example: hermes-worker runs answer run_0123... --wait-id 17 2")
@reachable
@of_tenant
@click.argument("run_id", type=TEXT)
@click.argument("text", type=TEXT)
@_wait_option
def answer_run(home: Path | None, run_id: str, text: str, wait_id: int | None) -> None:
    """Answer the question that a run asks. TEXT is the number of a choice, or words."""
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    wait_id = wait_id or _choose_question(backend, run_id, WaitKind.INPUT).id
    backend.client.answer(run_id, text, wait_id=wait_id)
    click.echo(f"{run_id} {colour_status(backend.client.run(run_id).status)}")


def _answer_approval(home: Path | None, run_id: str, wait_id: int | None, **answer: Any) -> None:
    backend = open_backend(home)
    run_id = backend.complete_run_id(run_id)
    if wait_id is None:
        asked = _choose_question(backend, run_id, WaitKind.APPROVAL)
        if answer["choice"] != ApprovalChoice.DENY.value:
            _confirm_seen(asked)
        wait_id = asked.id
    backend.client.approve(run_id, wait_id=wait_id, **answer)
    click.echo(f"{run_id} {colour_status(backend.client.run(run_id).status)}")


def _choose_question(backend: RunBackend, run_id: str, kind: WaitKind) -> WaitObject:
    """Choose the question of a run that asks one thing alone, and show it. Raises ``ConfigurationError`` where it asks
    nothing, or several things."""
    backend.client.run(run_id)  # raises where there is none
    found = backend.client.approvals(kind=kind.value, limit=_LIST_MAX)
    its = [each for each in found if each.run_id == run_id]
    if not its:
        raise ConfigurationError(f"run {run_id!r} waits for no {kind.value}; 'hermes-worker runs show' says how it is")
    if len(its) == 1:
        click.echo(_render_whole(its[0]), err=True)
        return its[0]
    lines = [f"  --wait-id {each.id}  ({each.code})  {_summarise_question(each)}" for each in its]
    raise ConfigurationError("\n".join(["say which question you answer; the run asks:", *lines]))


def _confirm_seen(asked: WaitObject) -> None:
    """Have the person at the terminal confirm that what was shown is what they allow: nobody allows a command unseen.
    Raises ``ConfigurationError`` without a terminal."""
    if not sys.stdin.isatty():
        raise ConfigurationError(f"nothing is allowed unseen; if this is what you allow, add --wait-id {asked.id}")
    click.confirm("Allow all of it?", abort=True, err=True)


def _parse_choice(text: str) -> str:
    """Read a choice from its word. Raises ``ConfigurationError``."""
    try:
        return parse_choice(text).value
    except ValueError:
        words = ", ".join(CHOICE_WORDS)
        raise ConfigurationError(f"{text[:40]!r} is no answer to an approval; write one of {words}") from None


def _open_question(backend: RunBackend, named: str) -> WaitObject:
    """Find an open question by its number or its code. Raises ``ConfigurationError`` where it is not open."""
    asked = backend.client.approvals(limit=_LIST_MAX)
    meant = next((line for line in asked if named.upper() in (str(line.id), line.code)), None)
    if meant is None:
        raise ConfigurationError(
            f"nothing with the id {named[:40]} waits for an answer; 'hermes-worker approvals history' says who answered"
        )
    return meant


def _summarise_question(line: WaitObject | DecisionObject) -> str:
    """Write a question on one line for a list; what is left out is counted."""
    return summarise(*_find_text(line))[0]


def _find_text(line: WaitObject | DecisionObject) -> tuple[str, int]:
    """Find the text of a question, and how many of its characters a list shows."""
    return show_unprintable(line.command or line.question or line.description or line.tool), _ASKED_CHARS


def _format_open(line: WaitObject) -> tuple[str, ...]:
    waits = format_duration(max(0.0, time.time() - line.created_at))
    choices = "/".join(flatten_text(choice, 20) for choice in line.choices)
    return (
        str(line.id),
        line.code,
        _summarise_question(line),
        flatten_text(line.title or "-", TITLE_CHARS_MAX),
        waits,
        format_age(line.expires_at),
        choices or "words",
        line.tenant,
        line.run_id,
        flatten_text(line.directory or "-", 200),
    )


def _render_whole(line: WaitObject) -> str:
    """Render a question whole. Text of a model is set off, so that it cannot look like the line above it."""
    number, code, _, title, waits, ends, choices, tenant, run_id, _ = _format_open(line)
    texts = [text for text in (line.description, line.command or line.question) if text] or [line.tool]
    said = (f"    {show_unprintable(part)}" for text in texts for part in render_lines(text))
    head = f"{number}  {code}  waits {waits}, ends {ends}  {choices}  {tenant}  {run_id}"
    place = [f"    in: {show_unprintable(line.directory)}"] if line.directory else []
    return "\n".join([head, f"    of: {title}", *place, *said])


def _format_closed(line: DecisionObject, format_time: FormatTime) -> tuple[str, ...]:
    by = flatten_text(line.by or "-", 40)
    outcome = f"{line.outcome}: {flatten_text(line.reason, 40)}" if line.reason else line.outcome
    permits = flatten_text(line.permits or "-", 40)
    asked, title = _summarise_question(line), flatten_text(line.title or "-", TITLE_CHARS_MAX)
    if line.changed_arguments is not None:
        asked = f"ran {flatten_text(describe_call(line.tool, line.changed_arguments), _ASKED_CHARS)}, not {asked}"
    return str(line.id), outcome, asked, title, by, format_time(line.closed_at), permits, line.run_id


_CLOSED: ListLayout[DecisionObject] = ListLayout(
    header=("ID", "OUTCOME", "ASKED", "OF", "BY", "CLOSED", "PERMITS", "RUN"),
    row=_format_closed,
    document=lambda line: line.model_dump(exclude={"object", "session_id"}),
    name=lambda line: str(line.id),
    empty="nobody was asked anything that is closed",
    ids=(7,),
    whole=(0, 1, 5),
    spared=(7, 6, 4),
)
