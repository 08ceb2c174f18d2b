"""The commands of the kernel, as declarations, in the order of ``--help``; a feature declares its own.

What a command says of itself is repeated here so that ``--help`` need not import it; a test compares the two. Those
with two words are verbs of a group (``cli.groups``).
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
            section="Work",
        ),
        CommandDeclaration(
            name="chat",
            summary="Talk with an agent: over the HTTP API of 'hermes-worker up', or of --server.",
            implementation="hermes_worker.cli.chat.command:chat",
            section="Work",
        ),
        CommandDeclaration(
            name="submit",
            summary="Put a task into the queue.",
            implementation="hermes_worker.cli.submit:submit",
            section="Work",
        ),
        CommandDeclaration(
            name="runs",
            summary="List, show, watch, stop and export runs.",
            implementation="hermes_worker.cli.runs:runs",
            section="Work",
        ),
        CommandDeclaration(
            name="top",
            summary="Show what runs, waits and asks, with keys to open, stop, pause and approve.",
            implementation="hermes_worker.cli.top.command:top",
            section="Work",
        ),
        CommandDeclaration(
            name="sessions",
            summary="List, show, search, rename, fork, move and delete conversations.",
            implementation="hermes_worker.cli.sessions:sessions",
            section="Conversations",
        ),
        CommandDeclaration(
            name="cron",
            summary="Create, list and change scheduled jobs.",
            implementation="hermes_worker.cli.cron:cron",
            section="Schedules and chats",
        ),
        CommandDeclaration(
            name="gateway",
            summary="Say who may write to the agent, what may start it, and see what was sent.",
            implementation="hermes_worker.cli.gateway:gateway",
            section="Schedules and chats",
        ),
        CommandDeclaration(
            name="init",
            summary="Choose a provider and a model, try them, and write config.yaml and .env.",
            implementation="hermes_worker.cli.init:init",
            section="This machine",
        ),
        CommandDeclaration(
            name="up",
            summary="Start everything on this machine and keep it running.",
            implementation="hermes_worker.cli.up:up",
            section="This machine",
        ),
        CommandDeclaration(
            name="status",
            summary="Whether the stack of this home runs, since when, and how it does.",
            implementation="hermes_worker.cli.running_stack:status",
            section="This machine",
        ),
        CommandDeclaration(
            name="logs",
            summary="What a stack in the background wrote, and with -f what it writes.",
            implementation="hermes_worker.cli.running_stack:logs",
            section="This machine",
        ),
        CommandDeclaration(
            name="down",
            summary="Drain the stack of this home and stop it.",
            implementation="hermes_worker.cli.running_stack:down",
            section="This machine",
        ),
        CommandDeclaration(
            name="doctor",
            summary="Check everything this configuration needs, by trying it.",
            implementation="hermes_worker.cli.doctor:doctor",
            section="This machine",
        ),
        CommandDeclaration(
            name="start",
            summary="Run one process of a fleet, in the foreground.",
            implementation="hermes_worker.cli.groups:start",
            section="Operate",
        ),
        CommandDeclaration(
            name="start worker",
            summary="Run one worker process.",
            implementation="hermes_worker.cli.roles:worker",
        ),
        CommandDeclaration(
            name="start beat",
            summary="Run one scheduler process.",
            implementation="hermes_worker.cli.roles:beat",
        ),
        CommandDeclaration(
            name="start api",
            summary="Run one HTTP API process.",
            implementation="hermes_worker.cli.roles:api",
        ),
        CommandDeclaration(
            name="start gateway",
            summary="Run one process that listens to people on platforms.",
            implementation="hermes_worker.cli.gateway:listen",
        ),
        CommandDeclaration(
            name="start browser",
            summary="Run one process that starts and ends browsers for sessions.",
            implementation="hermes_worker.cli.roles:browser",
        ),
        CommandDeclaration(
            name="start mcp-host",
            summary="Run one process that starts and ends MCP servers that have a command, for sessions.",
            implementation="hermes_worker.cli.roles:mcp_processes",
        ),
        CommandDeclaration(
            name="start flower",
            summary="Show workers and tasks on the web page of Flower.",
            implementation="hermes_worker.cli.flower:flower",
        ),
        CommandDeclaration(
            name="fleet",
            summary="Watch and steer a fleet: workers, backlog, alerts, provider keys.",
            implementation="hermes_worker.cli.groups:fleet",
            section="Operate",
        ),
        CommandDeclaration(
            name="fleet workers",
            summary="List worker processes and what they hold, and have one leave in order.",
            implementation="hermes_worker.cli.workers:workers",
        ),
        CommandDeclaration(
            name="fleet backlog",
            summary="Show how much work waits, by queue, and how many places it needs.",
            implementation="hermes_worker.cli.backlog:backlog",
        ),
        CommandDeclaration(
            name="fleet providers",
            summary="Show which keys of providers are closed, open them, and give tenants keys of their own.",
            implementation="hermes_worker.cli.providers:providers",
        ),
        CommandDeclaration(
            name="data",
            summary="Migrate, back up, keep, encrypt, hand out and delete what is stored.",
            implementation="hermes_worker.cli.groups:data",
            section="Operate",
        ),
        CommandDeclaration(
            name="data migrate",
            summary="Bring the database to this version's schema.",
            implementation="hermes_worker.cli.roles:migrate",
        ),
        CommandDeclaration(
            name="data backup",
            summary="Write everything of a home into ARCHIVE, also while runs are at work.",
            implementation="hermes_worker.cli.backup:backup",
        ),
        CommandDeclaration(
            name="data restore",
            summary="Make a home from ARCHIVE, or mark a database that its server set back.",
            implementation="hermes_worker.cli.backup:restore",
        ),
        CommandDeclaration(
            name="data import-hermes",
            summary="Take over settings, conversations, memory, skills and jobs of Hermes Agent.",
            implementation="hermes_worker.cli.import_hermes:import_hermes",
        ),
        CommandDeclaration(
            name="data workspaces",
            summary="List and remove workspaces that are not on this machine.",
            implementation="hermes_worker.cli.workspaces:workspaces",
        ),
        CommandDeclaration(
            name="extensions",
            summary="List, enable and disable what others wrote for Hermes worker.",
            implementation="hermes_worker.cli.extensions:extensions",
            section="Develop",
        ),
        CommandDeclaration(
            name="extensions tools",
            summary="See which tools agents can have here, and what others need.",
            implementation="hermes_worker.cli.tools:list_tools",
        ),
        CommandDeclaration(
            name="config completion",
            summary="Print the script with which a shell completes commands.",
            implementation="hermes_worker.cli.completion:completion",
        ),
        CommandDeclaration(
            name="dev",
            summary="Try things: examples, a scripted model, and a crash lab.",
            implementation="hermes_worker.cli.groups:dev",
            section="Develop",
        ),
        CommandDeclaration(
            name="dev new",
            summary="Copy an example application into DIRECTORY.",
            implementation="hermes_worker.cli.examples:copy_example",
        ),
        CommandDeclaration(
            name="dev scripted-model",
            summary="Serve the scripted stand-in for a model.",
            implementation="hermes_worker.cli.roles:scripted_model",
        ),
        CommandDeclaration(
            name="dev chaos",
            summary="Break a fleet on purpose and check that nothing was lost, repeated or miscounted.",
            implementation="hermes_worker.cli.chaos:chaos",
        ),
        CommandDeclaration(
            name="dev prove",
            summary="Show six properties of resuming with workers that are killed, judged from outside.",
            implementation="hermes_worker.cli.prove:prove",
        ),
    ),
)
