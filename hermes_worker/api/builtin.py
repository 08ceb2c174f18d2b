"""The built-in routes of the HTTP API, as declarations."""

from __future__ import annotations

from hermes_worker.extension import Extension, RouterDeclaration

EXTENSION = Extension(
    name="api",
    version="1",
    summary="The HTTP API",
    routers=(
        RouterDeclaration(name="openai_models", implementation="hermes_worker.api.openai.models:router"),
        RouterDeclaration(name="openai_chat", implementation="hermes_worker.api.openai.chat:router"),
        RouterDeclaration(name="openai_responses", implementation="hermes_worker.api.openai.responses:router"),
        RouterDeclaration(name="openai_conversations", implementation="hermes_worker.api.openai.conversations:router"),
        RouterDeclaration(name="health", implementation="hermes_worker.api.routes.health:router"),
        RouterDeclaration(name="runs", implementation="hermes_worker.api.routes.runs:router"),
        RouterDeclaration(name="batches", implementation="hermes_worker.api.routes.batches:router"),
        RouterDeclaration(name="checkpoints", implementation="hermes_worker.api.routes.checkpoints:router"),
        RouterDeclaration(name="artifacts", implementation="hermes_worker.api.routes.artifacts:router"),
        RouterDeclaration(name="events", implementation="hermes_worker.api.routes.events:router"),
        RouterDeclaration(name="approvals", implementation="hermes_worker.api.routes.approvals:router"),
        RouterDeclaration(name="control", implementation="hermes_worker.api.routes.control:router"),
        RouterDeclaration(name="jobs", implementation="hermes_worker.api.routes.jobs:router"),
        RouterDeclaration(name="job_sheets", implementation="hermes_worker.api.routes.job_sheets:router"),
        RouterDeclaration(name="deliveries", implementation="hermes_worker.api.routes.deliveries:router"),
        RouterDeclaration(name="webhooks", implementation="hermes_worker.api.routes.webhooks:router"),
        RouterDeclaration(name="backlog", implementation="hermes_worker.api.routes.backlog:router"),
        RouterDeclaration(name="providers", implementation="hermes_worker.api.routes.providers:router"),
        RouterDeclaration(name="provider_keys", implementation="hermes_worker.api.routes.provider_keys:router"),
        RouterDeclaration(name="alerts", implementation="hermes_worker.api.routes.alerts:router"),
        RouterDeclaration(name="memory", implementation="hermes_worker.api.routes.memory:router"),
        RouterDeclaration(name="skills", implementation="hermes_worker.api.routes.skills:router"),
        RouterDeclaration(name="sessions", implementation="hermes_worker.api.routes.sessions:router"),
        RouterDeclaration(name="session_turns", implementation="hermes_worker.api.routes.session_turns:router"),
        RouterDeclaration(name="capabilities", implementation="hermes_worker.api.routes.capabilities:router"),
        RouterDeclaration(name="audit", implementation="hermes_worker.api.routes.audit:router"),
        RouterDeclaration(name="tenants", implementation="hermes_worker.api.routes.tenants:router"),
        RouterDeclaration(name="access", implementation="hermes_worker.api.routes.access:router"),
        RouterDeclaration(name="webhook_routes", implementation="hermes_worker.api.routes.webhook_routes:router"),
        RouterDeclaration(name="retention", implementation="hermes_worker.api.routes.retention:router"),
        RouterDeclaration(name="erasures", implementation="hermes_worker.api.routes.erasures:router"),
        RouterDeclaration(name="sheets", implementation="hermes_worker.api.routes.sheets:router"),
        RouterDeclaration(name="mcp", implementation="hermes_worker.api.mcp.routes:router"),
        RouterDeclaration(name="page_logins", implementation="hermes_worker.api.routes.page_logins:router"),
        RouterDeclaration(name="trees", implementation="hermes_worker.api.routes.trees:router"),
    ),
)
