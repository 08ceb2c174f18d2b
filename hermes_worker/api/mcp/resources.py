"""Resources and prompts of ``/mcp``: runs, sessions and artifacts to read, and skills as prompts."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from hermes_worker.api.context import ApiContext
from hermes_worker.api.mcp.envelope import INVALID_PARAMS, RpcRequest
from hermes_worker.api.mcp.runs_as_tasks import describe_run
from hermes_worker.core.offered_skills import prepend_skills
from hermes_worker.core.principals import Principal
from hermes_worker.safety.redaction import redact
from hermes_worker.store.artifacts.listing import ArtifactNotFound, Artifacts
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.runs import RunDeleted, RunNotFound, SessionNotFound
from hermes_worker.store.sessions import SessionPage, Sessions

_LISTED: Final = 50
"""How many runs, and how many sessions, are listed: the newest. Others are read by their address."""
_MESSAGES_MAX: Final = 500
_JSON: Final = "application/json"
_RUNS, _SESSIONS, _ARTIFACTS = "hermes://runs/", "hermes://sessions/", "hermes://artifacts/"
_URI = re.compile(r"hermes://(?P<kind>runs|sessions|artifacts)/(?P<name>[!-.0-~]{1,256})")
_NAME_CHARS_MAX = 120
_UNCACHED: Mapping[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
_INPUT = {"name": "input", "description": "What is to be done by the skill.", "required": False}


def build_template_list() -> dict[str, Any]:
    """Build the result of ``resources/templates/list``."""
    templates = [
        {"name": "run", "uriTemplate": f"{_RUNS}{{run_id}}", "description": "A run, its answer and its files."},
        {"name": "session", "uriTemplate": f"{_SESSIONS}{{session_id}}", "description": "What was said in a session."},
    ]
    files = {
        "name": "artifact",
        "uriTemplate": f"{_ARTIFACTS}{{artifact_id}}",
        "description": "A file that a run left.",
    }
    return {**_UNCACHED, "resourceTemplates": [*({**one, "mimeType": _JSON} for one in templates), files]}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceReader:
    """Reads what belongs to the tenant of a caller."""

    context: ApiContext
    principal: Principal

    async def list_resources(self) -> dict[str, Any]:
        """Build the result of ``resources/list``. Raises ``UnavailableError``."""
        wanted = RunFilter(tenant=self.principal.tenant, source=self.principal.source)
        page = await self._call(Listing(self.context.client.database).list_page, wanted, limit=_LISTED)
        sessions = await self._call(self._sessions.list_page, SessionPage(limit=_LISTED))
        runs = [
            _build_resource(
                f"{_RUNS}{view.run_id}", view.run_id, f"A run that is {view.status.value.replace('_', ' ')}."
            )
            for view in page.views
        ]
        return {
            **_UNCACHED,
            "resources": runs
            + [
                _build_resource(
                    f"{_SESSIONS}{view.label.id}", view.title or view.preview or view.label.id, "A session."
                )
                for view in sessions
            ],
        }

    async def read(self, asked: RpcRequest) -> dict[str, Any]:
        """Run ``resources/read`` and build its result. Raises ``RpcRefusal``, ``UnavailableError``."""
        uri = asked.params.get("uri")
        match = _URI.fullmatch(uri) if isinstance(uri, str) else None
        if match is None:
            raise asked.refusal(INVALID_PARAMS, f"There is no resource {str(uri)[:300]!r}.", {"uri": uri})
        try:
            match match["kind"]:
                case "runs":
                    content = await self._read_run(match["name"])
                case "sessions":
                    content = await self._read_session(match["name"])
                case _:
                    content = await self._read_artifact(match["name"])
        except (RunNotFound, RunDeleted, SessionNotFound, ArtifactNotFound):
            raise asked.refusal(INVALID_PARAMS, f"There is no resource {uri!r}.", {"uri": uri}) from None
        return {**_UNCACHED, "contents": [{"uri": uri, **content}]}

    async def list_prompts(self) -> dict[str, Any]:
        """Build the result of ``prompts/list``: the skills that runs can be given. Raises ``UnavailableError``."""
        found = await self._call(self.context.client.skills.list_usable, self.principal.tenant)
        prompts = [
            {"name": each.name, "description": redact(each.facts.description), "arguments": [_INPUT]} for each in found
        ]
        return {**_UNCACHED, "prompts": prompts}

    async def get_prompt(self, asked: RpcRequest) -> dict[str, Any]:
        """Run ``prompts/get``: the text of a skill, and what is to be done by it. Raises ``RpcRefusal``,
        ``UnavailableError``."""
        name, arguments = asked.params.get("name"), asked.params.get("arguments") or {}
        said = arguments.get("input", "") if isinstance(arguments, dict) else None
        if not isinstance(name, str) or not isinstance(said, str):
            raise asked.refusal(INVALID_PARAMS, "'name' and the argument 'input' must be texts.")
        skills = self.context.client.skills
        usable = {each.name for each in await self._call(skills.list_usable, self.principal.tenant)}
        found = await self._call(skills.load_named, self.principal.tenant, [name]) if name in usable else None
        if found is None or found.missing:
            raise asked.refusal(INVALID_PARAMS, f"There is no prompt {name[:100]!r}.")
        text = prepend_skills(found.texts, said) if said.strip() else "\n\n".join(found.texts)
        message = {"role": "user", "content": {"type": "text", "text": text}}
        return {"resultType": "complete", "messages": [message]}

    # --- one resource ------------------------------------------------------------------------------------------------

    async def _read_run(self, name: str) -> dict[str, Any]:
        client = self.context.client
        run_id = await self._call(self.context.tenants.require_run, self.principal.tenant, name)
        view = await self._call(client.views.load_run, run_id)
        waits = () if view.status.is_terminal else await self._call(client.waits.list_open, run_id=run_id)
        left = await self._call(Artifacts(client.database).list_artifacts, run_id)
        files = [
            {"uri": f"{_ARTIFACTS}{each.artifact_id}", "path": each.path, "size": each.size, "sha256": each.sha256}
            for each in left.files
        ]
        return _build_json_content(describe_run(view, waits) | ({"artifacts": files} if files else {}))

    async def _read_session(self, name: str) -> dict[str, Any]:
        view = await self._call(self._sessions.get, name)
        rows = await self._call(self._sessions.list_messages, name, limit=_MESSAGES_MAX + 1)
        said = [{"role": row.role.value, **_pick_shown_fields(json.loads(row.body))} for row in rows[:_MESSAGES_MAX]]
        document = {"session_id": view.label.id, "title": view.title, "messages": said}
        return _build_json_content(document | ({"has_more": True} if len(rows) > _MESSAGES_MAX else {}))

    async def _read_artifact(self, name: str) -> dict[str, Any]:
        reading = Artifacts(self.context.client.database)
        view = await self._call(reading.find, name)
        if view.tenant != self.principal.tenant:
            raise ArtifactNotFound(name)
        content = await self._call(reading.load_content, view)
        try:
            return {"mimeType": view.media_type, "text": content.decode()}
        except UnicodeDecodeError:
            return {"mimeType": view.media_type, "blob": base64.b64encode(content).decode()}

    @property
    def _sessions(self) -> Sessions:
        return Sessions(self.context.client.database, self.principal.tenant, self.principal.source)

    async def _call(self, function: Any, *arguments: Any, **named: Any) -> Any:
        return await self.context.call_store(lambda: function(*arguments, **named))


def _build_resource(uri: str, name: str, description: str) -> dict[str, Any]:
    shown = " ".join(redact(name).split())[:_NAME_CHARS_MAX]
    return {"uri": uri, "name": shown, "description": description, "mimeType": _JSON}


def _pick_shown_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("content", "tool_calls", "tool_call_id") if row.get(name)}


def _build_json_content(document: Mapping[str, Any]) -> dict[str, Any]:
    return {"mimeType": _JSON, "text": json.dumps(document, ensure_ascii=False)}
