"""The capabilities of this server, and its toolsets and skills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import Context
from hermes_worker.schemas.capabilities import (
    AuthObject,
    CapabilitiesObject,
    EndpointObject,
    RuntimeObject,
    SkillList,
    SkillObject,
    ToolsetList,
    ToolsetObject,
)
from hermes_worker.services.submission import DEFAULT_MODEL_ALIAS
from hermes_worker.services.toolsets import list_tenant_toolsets

router = APIRouter(prefix="/v1", tags=["capabilities"])

ENDPOINTS: Mapping[str, tuple[str, str]] = {
    "health": ("GET", "/health"),
    "health_detailed": ("GET", "/health/detailed"),
    "models": ("GET", "/v1/models"),
    "chat_completions": ("POST", "/v1/chat/completions"),
    "responses": ("POST", "/v1/responses"),
    "response": ("GET", "/v1/responses/{response_id}"),
    "response_delete": ("DELETE", "/v1/responses/{response_id}"),
    "runs": ("POST", "/v1/runs"),
    "run_list": ("GET", "/v1/runs"),
    "run_status": ("GET", "/v1/runs/{run_id}"),
    "run_events": ("GET", "/v1/runs/{run_id}/events"),
    "run_approval": ("POST", "/v1/runs/{run_id}/approval"),
    "run_stop": ("POST", "/v1/runs/{run_id}/stop"),
    "skills": ("GET", "/v1/skills"),
    "toolsets": ("GET", "/v1/toolsets"),
    "sessions": ("GET", "/api/sessions"),
    "session_create": ("POST", "/api/sessions"),
    "session": ("GET", "/api/sessions/{session_id}"),
    "session_update": ("PATCH", "/api/sessions/{session_id}"),
    "session_delete": ("DELETE", "/api/sessions/{session_id}"),
    "session_messages": ("GET", "/api/sessions/{session_id}/messages"),
    "session_fork": ("POST", "/api/sessions/{session_id}/fork"),
    "session_chat": ("POST", "/api/sessions/{session_id}/chat"),
    "session_chat_stream": ("POST", "/api/sessions/{session_id}/chat/stream"),
    "jobs": ("GET", "/api/jobs"),
}
"""Hermes Agent's names of its operations. Those that this server has are told."""
_FEATURES: Mapping[str, str] = {
    "chat_completions": "chat_completions",
    "chat_completions_streaming": "chat_completions",
    "responses_api": "responses",
    "responses_streaming": "responses",
    "run_submission": "runs",
    "run_status": "run_status",
    "run_events_sse": "run_events",
    "run_stop": "run_stop",
    "run_approval_response": "run_approval",
    "tool_progress_events": "chat_completions",
    "approval_events": "run_events",
    "session_resources": "sessions",
    "session_chat": "session_chat",
    "session_chat_streaming": "session_chat_stream",
    "session_fork": "session_fork",
    "skills_api": "skills",
    "toolsets_api": "toolsets",
    "jobs_api": "jobs",
}
"""Features that clients ask for, and the operation without which a feature is missing."""


@router.get("/capabilities", response_model=CapabilitiesObject, dependencies=[READS])
async def show_capabilities(context: Context, request: Request) -> CapabilitiesObject:
    """The capabilities of this server, and where each is."""
    paths: Mapping[str, Mapping[str, Any]] = request.app.openapi()["paths"]
    there = {name: at for name, at in ENDPOINTS.items() if at[0].lower() in paths.get(at[1], {})}
    features: dict[str, bool | str] = {name: needed in there for name, needed in _FEATURES.items()}
    features |= {
        "jobs_admin": False,
        "cors": bool(context.client.settings.server.cors_origins),
        "idempotency_keys": True,
        "session_continuity_header": "X-Hermes-Session-Id",
    }
    return CapabilitiesObject(
        version=schema.VERSION,
        model=DEFAULT_MODEL_ALIAS,
        auth=AuthObject(),
        runtime=RuntimeObject(),
        features=features,
        endpoints={name: EndpointObject(method=method, path=path) for name, (method, path) in there.items()},
    )


@router.get("/toolsets", response_model=ToolsetList, responses=schema.declare_errors(503), dependencies=[READS])
async def list_toolsets(context: Context, caller: Caller) -> ToolsetList:
    """The toolsets that a run can name."""
    found = await context.call_store(list_tenant_toolsets, context.client, caller.tenant)
    return ToolsetList(
        data=[
            ToolsetObject(
                name=each.name,
                label=each.name.replace("-", " ").replace("_", " ").title(),
                description=f"{len(each.tools)} tool(s): {', '.join(each.tools)}",
                enabled=each.is_usual,
                configured=True,
                tools=list(each.tools),
            )
            for each in found
        ]
    )


@router.get("/skills", response_model=SkillList, responses=schema.declare_errors(503), dependencies=[READS])
async def list_skills(context: Context, caller: Caller) -> SkillList:
    """The skills and bundles that a run can be given by name, as they are now."""
    found = await context.call_store(context.client.skills.list_usable, caller.tenant)
    return SkillList(
        data=[
            SkillObject(name=each.name, description=each.facts.description, category=each.category or None)
            for each in found
        ]
    )
