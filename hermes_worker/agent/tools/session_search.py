"""``session_search``: what was said in earlier conversations (docs/sessions.md, "For agents").

Four shapes, by what is asked: *discover* (a query), *read* (a session), *scroll* (a session and a message of it) and
*browse* (nothing). No model is asked. What is found may hold texts of strangers, so the whole result is marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.agent.tools.builtin import SESSION_SEARCH, SESSIONS_DEFAULT, SESSIONS_MAX, WINDOW_DEFAULT, WINDOW_MAX
from hermes_worker.agent.tools.interruptible import run_interruptibly
from hermes_worker.agent.tools.results import build_json_result
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import Role

_ROLES: Final = {role.value: role for role in (Role.USER, Role.ASSISTANT, Role.TOOL)}
_USUAL_ROLES: Final = "user,assistant"


class SessionSearchRefused(HermesError):
    """A run may not look there, or asked for something that there is not; the message tells the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionQuery:
    """A query for ``discover``."""

    text: str
    limit: int
    sort: str | None
    """``newest``, ``oldest`` or, for most hits first, ``None``."""
    roles: tuple[Role, ...]


class PastSessions(Protocol):
    """Looks into the sessions that a run may see. ``tasks.agent_sessions``. Each method raises
    ``SessionSearchRefused``, and ``UnavailableError`` when the database does not answer."""

    def discover(self, query: SessionQuery, context: ToolContext) -> Mapping[str, object]: ...
    def read(self, session_id: str, context: ToolContext) -> Mapping[str, object]: ...
    def scroll(self, session_id: str, around: int, window: int, context: ToolContext) -> Mapping[str, object]: ...
    def browse(self, limit: int, context: ToolContext) -> Mapping[str, object]: ...


class SessionSearchTool:
    """Passes the model's request on to ``PastSessions``."""

    def __init__(self, past_sessions: PastSessions) -> None:
        self._sessions = past_sessions

    spec: Final = SESSION_SEARCH

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        try:
            look = self._choose_action(arguments)
            found = run_interruptibly(lambda: look(context), context.cancelled)
        except SessionSearchRefused as refused:
            return build_json_result({"success": False, "error": str(refused)}, is_error=True)
        return build_json_result({"success": True, **found})

    def _choose_action(self, arguments: Mapping[str, Any]) -> Callable[[ToolContext], Mapping[str, object]]:
        session_id = str(arguments.get("session_id") or "").strip()
        around = arguments.get("around_message_id")
        limit = min(max(int(arguments.get("limit") or SESSIONS_DEFAULT), 1), SESSIONS_MAX)
        if session_id and around is not None:
            window = min(max(int(arguments.get("window") or WINDOW_DEFAULT), 1), WINDOW_MAX)
            return lambda context: self._sessions.scroll(session_id, int(around), window, context)
        if session_id:
            return lambda context: self._sessions.read(session_id, context)
        if around is not None:
            raise SessionSearchRefused("around_message_id needs the session_id of its conversation.")
        if not (text := str(arguments.get("query") or "").strip()):
            return lambda context: self._sessions.browse(limit, context)
        roles = _parse_roles(arguments.get("role_filter") or _USUAL_ROLES)
        query = SessionQuery(text=text, limit=limit, sort=arguments.get("sort"), roles=roles)
        return lambda context: self._sessions.discover(query, context)


def _parse_roles(given: str | Sequence[str]) -> tuple[Role, ...]:
    """Parse the roles to search, a list or a text with commas. Raises ``SessionSearchRefused``."""
    words = given.split(",") if isinstance(given, str) else given
    names = [str(word).strip().lower() for word in words if str(word).strip()]
    if unknown := [name for name in names if name not in _ROLES]:
        raise SessionSearchRefused(f"role_filter: there is no role {unknown[0]!r}; there are {', '.join(_ROLES)}.")
    return tuple(dict.fromkeys(_ROLES[name] for name in names)) or (Role.USER, Role.ASSISTANT)
