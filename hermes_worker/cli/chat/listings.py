"""What a chat lists when a command asks for it: each as lines, from answers of the API alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hermes_worker.cli.chat.line_parser import SlashVerb, render_help
from hermes_worker.cli.layout import format_age, format_count, format_moment, format_tokens, parse_moment
from hermes_worker.cli.top.fleet import render_tree
from hermes_worker.cli.wording import flatten_text, render_question
from hermes_worker.core.pricing import CostStatus, format_cost
from hermes_worker.core.run import OPEN_STATUSES

if TYPE_CHECKING:
    from hermes_worker.client import HermesClient
    from hermes_worker.schemas.sessions import MessageObject, SessionObject

_ROWS_MAX = 50
_CHARS_PER_TOKEN = 4
"""Roughly, for an estimate that is shown as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListingScope:
    """Where a chat is: its conversation and the last run of it."""

    client: HermesClient
    session_id: str | None
    run_id: str | None


Listing = Callable[[ListingScope], list[str]]


def _make_session_listing(render: Callable[[HermesClient, str], list[str]]) -> Listing:
    def render_place(place: ListingScope) -> list[str]:
        return ["there is no conversation yet"] if place.session_id is None else render(place.client, place.session_id)

    return render_place


def _make_run_listing(render: Callable[[HermesClient, str], list[str]]) -> Listing:
    def render_place(place: ListingScope) -> list[str]:
        return ["there is no run yet"] if place.run_id is None else render(place.client, place.run_id)

    return render_place


def render_messages(messages: list[MessageObject], count: int) -> list[str]:
    """Render the last ``count`` messages of a conversation, each on one line."""
    said = [each for each in messages if each.role in ("user", "assistant") and each.content]
    return [f"{each.role}: {flatten_text(str(each.content), 400)}" for each in said[-count:]]


def format_session(session: SessionObject) -> str:
    """Describe a conversation on one line."""
    about = flatten_text(session.title or session.preview, 60)
    at = format_moment(session.last_active)
    return f"{about}  {at}  {format_count(session.message_count, 'message')}  {flatten_text(session.id, 60)}"


def _render_status(place: ListingScope) -> list[str]:
    lines = ["a new conversation"]
    if place.session_id is not None:
        session = place.client.session(place.session_id)
        lines = [f"{format_session(session)}", "a run is at work" if session.is_at_work else "no run is at work"]
    if place.run_id is not None:
        lines.append(flatten_text(place.client.explain(place.run_id).text, 400))
    return lines


def _render_usage(client: HermesClient, session_id: str) -> list[str]:
    session = client.session(session_id)
    cached = session.cache_read_tokens + session.cache_write_tokens
    return [
        f"{format_count(session.api_call_count, 'model call')}, {format_count(session.tool_call_count, 'tool call')}, "
        f"{format_count(session.message_count, 'message')}",
        format_tokens(session.input_tokens, cached, session.output_tokens)
        + (f", {cached:,} of them from or to a cache" if cached else ""),
        format_cost(session.estimated_cost_usd, CostStatus.UNKNOWN if session.has_unknown_cost else None),
    ]


def _render_context(client: HermesClient, run_id: str) -> list[str]:
    prompt = client.prompt(run_id)
    parts = {"system prompt": prompt.system, "tools": str(prompt.tools), "messages": str(prompt.messages)}
    sizes = {name: len(text) // _CHARS_PER_TOKEN for name, text in parts.items()}
    counts = f"{format_count(len(prompt.messages), 'message')}, {format_count(len(prompt.tools), 'tool')}"
    about = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    return [f"{flatten_text(prompt.model, 80)}: {counts}", f"about {sum(sizes.values()):,} tokens ({about})"]


def _render_tools(place: ListingScope) -> list[str]:
    lines = []
    for each in place.client.toolsets():
        if each.configured:
            tools = flatten_text(", ".join(each.tools), 160)
            lines.append(f"{'*' if each.enabled else ' '} {flatten_text(each.name, 40)}  {tools}")
    return [*lines, "* marks those that a new conversation has"]


def _render_skills(place: ListingScope) -> list[str]:
    found = place.client.skills()
    return [f"/{flatten_text(each.name, 60)}  {flatten_text(each.description, 120)}" for each in found] or [
        "there are no skills"
    ]


def _render_memory(place: ListingScope) -> list[str]:
    found = place.client.memory()
    texts = [
        f"{each.target}: {flatten_text(each.content, 300)}"
        for one in (found.memory, found.user)
        for each in one.entries
        if each.content
    ]
    staged = (
        [f"{len(found.staged)} changes wait for you; 'hermes-worker memory list' shows them"] if found.staged else []
    )
    return [*(texts or ["nothing is remembered"]), *staged]


def _render_agents(place: ListingScope) -> list[str]:
    found = islice(place.client.runs(status=OPEN_STATUSES, limit=_ROWS_MAX), _ROWS_MAX)
    return [
        f"{flatten_text(each.title or '-', 60)}  {each.status.replace('_', ' ')}  {flatten_text(each.run_id, 64)}"
        for each in found
    ] or ["no run is open"]


def _render_approvals(place: ListingScope) -> list[str]:
    lines = []
    for wait in place.client.approvals(limit=_ROWS_MAX):
        said = f"{wait.code} of {flatten_text(wait.run_id, 64)}:"
        lines += render_question(said, wait.command or wait.question or wait.description or "")
    return lines or ["nothing waits for an answer"]


def _render_jobs(place: ListingScope) -> list[str]:
    return [
        f"{flatten_text(each.name, 60)}  {flatten_text(each.schedule_display or '', 40)}  "
        f"next {format_age(parse_moment(each.next_run_at))}"
        for each in place.client.jobs()[:_ROWS_MAX]
    ] or ["there are no jobs"]


LISTINGS: Final[Mapping[SlashVerb, Listing]] = MappingProxyType(
    {
        SlashVerb.HELP: lambda place: render_help(),
        SlashVerb.STATUS: _render_status,
        SlashVerb.HISTORY: _make_session_listing(
            lambda client, session_id: render_messages(list(client.messages(session_id)), _ROWS_MAX)
        ),
        SlashVerb.USAGE: _make_session_listing(_render_usage),
        SlashVerb.CONTEXT: _make_run_listing(_render_context),
        SlashVerb.TREE: _make_run_listing(lambda client, run_id: render_tree(client.tree(run_id))),
        SlashVerb.TOOLS: _render_tools,
        SlashVerb.SKILLS: _render_skills,
        SlashVerb.MEMORY: _render_memory,
        SlashVerb.AGENTS: _render_agents,
        SlashVerb.APPROVALS: _render_approvals,
        SlashVerb.JOBS: _render_jobs,
    }
)
"""The commands that only show something."""
