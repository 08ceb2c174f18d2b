"""The built-in commands, as declarations, in the order of ``--help``.

What a command says of itself is repeated here so that ``--help`` need not import it; a test compares the two.
"""

from __future__ import annotations

from hermes_worker.extension import CommandDeclaration, Extension

EXTENSION = Extension(
    name="cli",
    version="1",
    summary="The command line",
    commands=(
        CommandDeclaration(
            name="run",
            summary="Give an agent a task in a directory and watch it work.",
            implementation="hermes_worker.cli.running:run",
        ),
        CommandDeclaration(
            name="init",
            summary="Choose a provider and a model, try them, and write config.yaml and .env.",
            implementation="hermes_worker.cli.init:init",
        ),
        CommandDeclaration(
            name="up",
            summary="Start everything on this machine and keep it running.",
            implementation="hermes_worker.cli.up:up",
        ),
        CommandDeclaration(
            name="status",
            summary="Whether the stack of this home runs, since when, and how it does.",
            implementation="hermes_worker.cli.running_stack:status",
        ),
        CommandDeclaration(
            name="logs",
            summary="What a stack in the background wrote, and with -f what it writes.",
            implementation="hermes_worker.cli.running_stack:logs",
        ),
        CommandDeclaration(
            name="down",
            summary="Drain the stack of this home and stop it.",
            implementation="hermes_worker.cli.running_stack:down",
        ),
        CommandDeclaration(
            name="chat",
            summary="Talk with an agent: over the HTTP API of 'hermes-worker up', or of --server.",
            implementation="hermes_worker.cli.chat.command:chat",
        ),
        CommandDeclaration(
            name="top",
            summary="Show what runs, waits and asks, with keys to open, stop, pause and approve.",
            implementation="hermes_worker.cli.top.command:top",
        ),
        CommandDeclaration(
            name="submit",
            summary="Put a task into the queue.",
            implementation="hermes_worker.cli.submit:submit",
        ),
        CommandDeclaration(
            name="runs",
            summary="List, show, watch, stop and export runs.",
            implementation="hermes_worker.cli.runs:runs",
        ),
        CommandDeclaration(
            name="approvals",
            summary="List what waits for a person, answer it, and see who answered what.",
            implementation="hermes_worker.features.approvals.verbs:approvals",
        ),
        CommandDeclaration(
            name="sessions",
            summary="Conversations: summarise one now.",
            implementation="hermes_worker.cli.sessions:sessions",
        ),
        CommandDeclaration(
            name="cron",
            summary="Create, list and change scheduled jobs.",
            implementation="hermes_worker.cli.cron:cron",
        ),
        CommandDeclaration(
            name="deliveries",
            summary="List and show what was sent where, and send it again.",
            implementation="hermes_worker.features.deliveries.verbs:deliveries",
        ),
        CommandDeclaration(
            name="webhook",
            summary="Let others start runs: add, list, remove and try routes for their events.",
            implementation="hermes_worker.features.webhooks.verbs:webhook",
        ),
        CommandDeclaration(
            name="tenants",
            summary="List and create tenants: each has runs, jobs, routes and keys of its own.",
            implementation="hermes_worker.features.tenants.verbs:tenants",
        ),
        CommandDeclaration(
            name="audit",
            summary="List and export who did what.",
            implementation="hermes_worker.features.audit.verbs:audit",
        ),
        CommandDeclaration(
            name="keys",
            summary="Create, list, rotate and revoke keys of the HTTP API.",
            implementation="hermes_worker.features.tenants.verbs:keys",
        ),
        CommandDeclaration(
            name="memory",
            summary="Show and change what agents remember, undo changes, and move memories in and out.",
            implementation="hermes_worker.features.memory.verbs:memory",
        ),
        CommandDeclaration(
            name="skills",
            summary="List, show, add, remove and check the instructions that agents load for kinds of tasks.",
            implementation="hermes_worker.features.skills.verbs:skills",
        ),
        CommandDeclaration(
            name="extensions",
            summary="List, enable and disable what others wrote for Hermes worker.",
            implementation="hermes_worker.cli.extensions:extensions",
        ),
        CommandDeclaration(
            name="mcp",
            summary="Add, list, test, approve and remove MCP servers whose tools agents may call.",
            implementation="hermes_worker.cli.mcp:mcp",
        ),
        CommandDeclaration(
            name="worker",
            summary="Run one worker process.",
            implementation="hermes_worker.cli.roles:worker",
        ),
        CommandDeclaration(
            name="beat",
            summary="Run one scheduler process.",
            implementation="hermes_worker.cli.roles:beat",
        ),
        CommandDeclaration(
            name="api",
            summary="Run one HTTP API process.",
            implementation="hermes_worker.cli.roles:api",
        ),
        CommandDeclaration(
            name="gateway",
            summary="Listen to people on platforms, and say who may speak to the agent.",
            implementation="hermes_worker.cli.gateway:gateway",
        ),
        CommandDeclaration(
            name="browser",
            summary="Run one process that starts and ends browsers for sessions.",
            implementation="hermes_worker.cli.roles:browser",
        ),
        CommandDeclaration(
            name="mcp-host",
            summary="Run one process that starts and ends MCP servers that have a command, for sessions.",
            implementation="hermes_worker.cli.roles:mcp_processes",
        ),
        CommandDeclaration(
            name="flower",
            summary="Show workers and tasks on the web page of Flower.",
            implementation="hermes_worker.cli.flower:flower",
        ),
        CommandDeclaration(
            name="providers",
            summary="Show which keys of providers are closed, open them, and give tenants keys of their own.",
            implementation="hermes_worker.cli.providers:providers",
        ),
        CommandDeclaration(
            name="alerts",
            summary="List what operators were told is wrong, and try whether they are reached.",
            implementation="hermes_worker.features.alerts.verbs:alerts",
        ),
        CommandDeclaration(
            name="workers",
            summary="List worker processes and what they hold, and have one leave in order.",
            implementation="hermes_worker.cli.workers:workers",
        ),
        CommandDeclaration(
            name="spend",
            summary="What runs cost, by day, model, tenant, job or session.",
            implementation="hermes_worker.features.spend.verbs:spend",
        ),
        CommandDeclaration(
            name="backlog",
            summary="Show how much work waits, by queue, and how many places it needs.",
            implementation="hermes_worker.cli.backlog:backlog",
        ),
        CommandDeclaration(
            name="migrate",
            summary="Bring the database to this version's schema.",
            implementation="hermes_worker.cli.roles:migrate",
        ),
        CommandDeclaration(
            name="prune",
            summary="Delete what the rules of retention let go.",
            implementation="hermes_worker.features.retention.verbs:prune",
        ),
        CommandDeclaration(
            name="retention",
            summary="Show and change how long things are kept, and hold what must stay.",
            implementation="hermes_worker.features.retention.verbs:retention",
        ),
        CommandDeclaration(
            name="workspaces",
            summary="List and remove workspaces that are not on this machine.",
            implementation="hermes_worker.cli.workspaces:workspaces",
        ),
        CommandDeclaration(
            name="encryption",
            summary="Encrypt texts in the database, and change the keys.",
            implementation="hermes_worker.features.encryption.verbs:encryption",
        ),
        CommandDeclaration(
            name="export",
            summary="Write everything of a person, a session or a tenant as JSON lines.",
            implementation="hermes_worker.features.retention.erasure_verbs:export",
        ),
        CommandDeclaration(
            name="erase",
            summary="Delete everything of a person, a session or a tenant, and leave a receipt.",
            implementation="hermes_worker.features.retention.erasure_verbs:erase",
        ),
        CommandDeclaration(
            name="backup",
            summary="Write everything of a home into ARCHIVE, also while runs are at work.",
            implementation="hermes_worker.cli.backup:backup",
        ),
        CommandDeclaration(
            name="restore",
            summary="Make a home from ARCHIVE, or mark a database that its server set back.",
            implementation="hermes_worker.cli.backup:restore",
        ),
        CommandDeclaration(
            name="scripted-model",
            summary="Serve the scripted stand-in for a model.",
            implementation="hermes_worker.cli.roles:scripted_model",
        ),
        CommandDeclaration(
            name="doctor",
            summary="Check everything this configuration needs, by trying it.",
            implementation="hermes_worker.cli.doctor:doctor",
        ),
        CommandDeclaration(
            name="tools",
            summary="See which tools agents can have here, and what others need.",
            implementation="hermes_worker.cli.tools:tools",
        ),
        CommandDeclaration(
            name="check",
            summary="Check the configuration without connecting to anything.",
            implementation="hermes_worker.cli.doctor:check",
        ),
        CommandDeclaration(
            name="config",
            summary="Show, change and check the settings.",
            implementation="hermes_worker.cli.config:config",
        ),
        CommandDeclaration(
            name="chaos",
            summary="Break a fleet on purpose and check that nothing was lost, repeated or miscounted.",
            implementation="hermes_worker.cli.chaos:chaos",
        ),
    ),
)
