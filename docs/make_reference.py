"""Write the pages of ``docs/reference``: ``python docs/make_reference.py``.

Each page is made from the one place that declares what it lists: the fields of the settings, the API's OpenAPI
document, the tree of commands, the catalogue of metrics, the names of events, the catalogues of chat platforms and of
providers, the declarations of tools, and the tables of the database. Why the replay class of a tool is right stands in
``WHY`` here. A test compares the pages with what this module makes, so a change of a declaration needs one
run of it.

An item has one sentence, the first of its declaration. Settings keep all of theirs: what happens without a value, and
how a value is written, stands nowhere else.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import click
import redis
import sqlalchemy as sa

from hermes_worker import installed
from hermes_worker.agent.source_tools import build_bridge_specs
from hermes_worker.api.app import create_app
from hermes_worker.browser.declarations import build_browser_extension
from hermes_worker.channels.catalog import Platform, list_platforms
from hermes_worker.channels.inbound.declaration import InboundMode
from hermes_worker.cli import help_page
from hermes_worker.cli.entry import commands
from hermes_worker.cli.groups import DeclaredGroup, load_declarations
from hermes_worker.core.explanations import ExplainedReason
from hermes_worker.core.hooks import ABSENT_EVENTS, HOOK_EVENTS
from hermes_worker.core.overrides import OVERRIDABLE, Overridable, Widening
from hermes_worker.core.slash_commands import SLASH_COMMANDS, SlashCommand
from hermes_worker.extension import ToolSpec, load_reference
from hermes_worker.installed import load_built_in
from hermes_worker.metrics.catalogue import METRICS
from hermes_worker.models.catalog import list_provider_rows, list_wire_rows
from hermes_worker.observe import COUNTED, EVENTS
from hermes_worker.plugins import list_addons
from hermes_worker.settings import SettingRow, describe_settings, load_settings
from hermes_worker.settings.retired import RETIRED
from hermes_worker.store.build import build_database
from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.engine.stored_texts import PlacedText
from hermes_worker.store.whole_schema import load_schema
from hermes_worker.stream.events import LISTS_CHANGED, LIVE_FIELDS, ROW_FIELDS
from hermes_worker.wiring import build_client

FOLDER: Final = Path(__file__).with_name("reference")
Schema = Mapping[str, Any]

FIRST: Final = (
    *("model.provider", "model.default", "model.api_key", "model.base_url", "fallback_providers", "preset"),
    *("agent.max_turns", "agent.toolsets", "terminal.workspace", "terminal.sandbox"),
    *("approvals.mode", "database.url", "broker.url", "server.host", "server.port"),
    *("server.key", "chats.enabled", "encryption.keys", "metrics.port", "logging.level"),
)
"""The settings that most installations set, in the order in which they are met."""

_AUDIENCES: Final[Mapping[str, str]] = {
    "anyone": "Anyone",
    "operator": "Operators",
    "security": "Who answers for security",
    "developer": "Developers",
}
_FORBIDDEN: Final[Mapping[Widening, str]] = {
    Widening.NONE: "anything",
    Widening.MORE: "a smaller number",
    Widening.ON: "`false`",
    Widening.OFF: "`true`",
    Widening.LONGER: "fewer names",
}
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)\s+(?=[A-Z`'\"(])")
_METHODS = ("get", "post", "put", "patch", "delete")
_OF_ALL: Final = frozenset({"--home", "--debug"})
"""Options that nearly all commands take."""


# --- Markdown --------------------------------------------------------------------------------------------------------


def first_sentence(text: str) -> str:
    """The first sentence of ``text``, on one line and in Markdown."""
    return _SENTENCE_END.split(markdown_of(text), maxsplit=1)[0]


def markdown_of(text: str) -> str:
    """``text`` of a docstring on one line, with the code marks of Markdown."""
    return " ".join(text.split()).replace("``", "`")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, which is empty text when there are no rows."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    if not cells:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells))


def code(text: object) -> str:
    return f"`{text}`" if str(text) else ""


def join_paragraphs(parts: Iterable[str]) -> str:
    """Join the texts in ``parts`` as paragraphs, and leave empty ones out."""
    return "\n\n".join(part for part in parts if part)


def codes(texts: Iterable[object]) -> str:
    return ", ".join(code(text) for text in texts)


def page(title: str, introduction: str, *parts: str) -> str:
    """A page of the reference that says on top of itself that it is made, and by what."""
    made = "<!-- Made by docs/make_reference.py: change the declarations, and run it again. -->"
    return join_paragraphs((made, f"# {title}", introduction, *parts)) + "\n"


# --- settings --------------------------------------------------------------------------------------------------------


def settings_page() -> str:
    """Every setting, by group, and which of them a tenant, a session or a run may override."""
    rows = list(describe_settings())
    groups = dict.fromkeys(_group_of(row.key) for row in rows)
    head = ("Setting", "Takes", "Default", "Meaning", "Who sets it, and when")
    return page(
        "Settings",
        "Every setting with its key in `config.yaml` and its environment variable; [Settings](../settings.md) says "
        "which place wins, and the last column who sets it, when, and what happens there without it.",
        "## The first twenty",
        table(
            ("Setting", "Meaning", "Who sets it, and when"),
            [(_names(row), first_sentence(row.doc), _format_reason(row)) for row in first_of(rows)],
        ),
        *(
            f"## {group}\n\n" + table(head, [_setting_cells(row) for row in rows if _group_of(row.key) == group])
            for group in groups
        ),
        "## Settings that can be overridden",
        "For a tenant, a session or a run ([how](../settings.md#overrides)).",
        table(
            ("Setting", "For", "What a session or a run may set"),
            [(code(each.key), ", ".join(each.levels), _describe_allowed(each)) for each in OVERRIDABLE.values()],
        ),
        "## Settings that became constants",
        "A value for one of them is accepted in this release, changes nothing and is noted. The next release does not "
        "know them.",
        table(
            ("Setting", "It is always"),
            [(f"{code(each.key)}<br>{codes(each.variables)}", code(each.constant)) for each in RETIRED.values()],
        ),
    )


def first_of(rows: Sequence[SettingRow]) -> list[SettingRow]:
    """The settings of ``FIRST``. Raises ``LookupError`` for a key that is no setting any more."""
    by_key = {row.key: row for row in rows}
    if gone := [key for key in FIRST if key not in by_key]:
        raise LookupError(f"FIRST of docs/make_reference.py names what is no setting: {', '.join(gone)}")
    return [by_key[key] for key in FIRST]


def _group_of(key: str) -> str:
    return key.partition(".")[0] if "." in key else "General"


def _names(row: SettingRow) -> str:
    return f"{code(row.key)}<br>{code(row.variable)}"


def _setting_cells(row: SettingRow) -> tuple[str, ...]:
    takes = f"{row.allowed} (secret)" if row.is_secret else row.allowed
    return _names(row), takes, code(row.default), row.doc, _format_reason(row)


def _format_reason(row: SettingRow) -> str:
    return f"{_AUDIENCES[row.audience]}, when {row.reason}"


def _describe_allowed(each: Overridable) -> str:
    if not each.for_callers:
        allowed = "nothing"
    elif each.forbidden is Widening.LAXER:
        allowed = f"a stricter one: {codes(each.strictest_first)}, the strictest first"
    else:
        allowed = _FORBIDDEN[each.forbidden]
    return f"{allowed}; the fleet's own value is read at a start" if each.at_start else allowed


# --- the API ---------------------------------------------------------------------------------------------------------


def openapi_document() -> Schema:
    """The API's document. Nothing is connected and no key is needed, so the database may be an empty file."""
    with tempfile.TemporaryDirectory(prefix="hermes-reference-") as home:
        settings = load_settings({}, home=Path(home))
        database = build_database(settings)
        try:
            return create_app(build_client(settings, database, redis.Redis())).openapi()
        finally:
            database.close()


def api_page(document: Schema) -> str:
    """Every operation, by tag, with its parameters, its body and its answers."""
    operations = [
        (method, path, described)
        for path, methods in document["paths"].items()
        for method, described in methods.items()
        if method in _METHODS
    ]
    operations.sort(key=lambda each: (each[1], _METHODS.index(each[0])))
    tags = sorted({described["tags"][0] for *_, described in operations})
    return page(
        "HTTP API",
        "Every operation of `GET /openapi.json`; [The HTTP API](../api.md) says what stays, how to repeat a request, "
        "and what errors mean, and [Objects](api-objects.md) what the fields hold. A POST also takes "
        "`Idempotency-Key`.",
        *(
            "\n\n".join([f"## {tag}", *(_operation(*each) for each in operations if each[2]["tags"][0] == tag)])
            for tag in tags
        ),
    )


def _operation(method: str, path: str, described: Schema) -> str:
    body = _body_of(described)
    fields: list[tuple[str, ...]] = [
        (code(each["name"]), each["in"], type_of(each["schema"]), _is_needed(each), _meaning(each))
        for each in described.get("parameters", ())
        if each["name"].lower() != "idempotency-key"  # every POST takes it
    ]
    fields += [(code(name), "body", *cells) for name, *cells in _field_cells(body)]
    notes = [f"Answers {'; '.join(_answers(described))}."]
    if "$ref" in body:
        notes.insert(0, f"Takes {type_of(body)}.")
    if not described.get("security"):
        notes.append("Needs no key.")
    return join_paragraphs(
        (
            f"### `{method.upper()} {path}`",
            first_sentence(described["description"]),
            " ".join(notes),
            table(("Name", "In", "Type", "Needed", "Meaning"), fields),
        )
    )


def _body_of(described: Schema) -> Schema:
    content: dict[str, Schema] = described.get("requestBody", {}).get("content", {})
    return next((each.get("schema", {}) for each in content.values()), {})


def _answers(described: Schema) -> Iterator[str]:
    """The answers that are no errors, with what they hold, and the numbers of the errors."""
    errors = []
    for status, answer in described["responses"].items():
        if status.startswith(("4", "5")):
            errors.append(status)
            continue
        kinds = [
            type_of(content["schema"]) if content.get("schema") else code(media)
            for media, content in answer.get("content", {}).items()
        ]
        yield f"{status} {' or '.join(dict.fromkeys(kind for kind in kinds if kind))}".strip()
    if errors:
        yield f"errors {', '.join(errors)}"


def objects_page(document: Schema) -> str:
    """Every object that requests and answers hold."""
    schemas = {name: each for name, each in document["components"]["schemas"].items() if "." not in name}
    return page(
        "Objects of the API",
        "What requests and answers of the [HTTP API](api.md) hold; events of streams are on the page of "
        "[events](events.md).",
        *(_object(name, schemas[name]) for name in sorted(schemas, key=str.lower)),
    )


def _object(name: str, schema: Schema) -> str:
    rows = [(code(field), *cells) for field, *cells in _field_cells(schema)]
    sentence = first_sentence(schema.get("description", ""))
    rest = (
        table(("Field", "Type", "Needed", "Meaning"), rows)
        or f"{'One of' if 'enum' in schema else 'Holds'} {type_of(schema)}."
    )
    return join_paragraphs((f"## {name}", sentence, rest))


def _field_cells(schema: Schema) -> Iterator[tuple[str, str, str, str]]:
    needed = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        yield name, type_of(each), "yes" if name in needed else "", _meaning(each)


def _is_needed(parameter: Schema) -> str:
    return "yes" if parameter.get("required") else ""


def _meaning(each: Schema) -> str:
    schema = each.get("schema", each)
    default = schema.get("default")
    said = first_sentence(each.get("description", ""))
    by_default = f"Default: `{default}`." if default not in (None, [], {}, "") and "const" not in schema else ""
    return " ".join(part for part in (said, by_default) if part)


def type_of(schema: Schema) -> str:
    """A JSON schema in a few words, with links to the objects that it names."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](events.md)" if "." in name else f"[{name}](api-objects.md#{name.lower()})"
    if "const" in schema:
        return code(schema["const"] or '""')
    if "enum" in schema:
        return codes({None: "null", "": '""'}.get(value, value) for value in schema["enum"])
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(type_of(choice) for choice in choices))
    match schema.get("type"):
        case "array":
            return f"list of {type_of(schema.get('items', {}))}"
        case "object" if isinstance(schema.get("additionalProperties"), Mapping):
            return f"object of {type_of(schema['additionalProperties'])}"
        case list(kinds):
            return " or ".join(kinds)
        case None:
            return "anything"
        case kind:
            return str(kind)


# --- the command line ------------------------------------------------------------------------------------------------


def cli_page() -> str:
    """Every command, with its arguments and options."""
    root = click.Context(commands, info_name="hermes-worker", **commands.context_settings)
    return page(
        "Command line",
        "Every command and option; `hermes-worker COMMAND --help` says more on each. Nearly all commands also take "
        "`--home DIR`, where state, `config.yaml` and `.env` are, and `--debug`, which shows an error's traceback.",
        *(_command(*each) for each in walk(commands, root)),
        "## Slash commands",
        "Commands of `hermes-worker chat`, and of [chats on platforms](../gateway.md). In the terminal a skill is a "
        "command of its name.",
        table(("Command", "In the terminal", "On platforms"), map(_slash_cells, SLASH_COMMANDS)),
    )


def _slash_cells(row: SlashCommand) -> tuple[str, str, str]:
    names = [f"{row.name} {row.argument}".rstrip(), *row.aliases]
    there = row.chat_text.partition("– ")[2]
    return codes(f"/{name}" for name in names), row.summary or "–", there or "–"


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    """A command and all that stand below it, in the order of ``--help``."""
    yield command, context
    if isinstance(command, click.Group):
        # Without those of extensions in the home of whoever runs this.
        names = command.list_commands(context)
        if isinstance(command, DeclaredGroup):
            product = command.find_declared(installed.get_only_built_in().commands)
            foreign = command.find_declared(load_declarations()).keys() - product.keys()
            names = [name for name in names if name not in foreign]
        for name in names:
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from walk(below, click.Context(below, info_name=name, parent=context))


def _command(command: click.Command, context: click.Context) -> str:
    depth = context.command_path.count(" ")
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    options = [
        (
            code(", ".join([*each.opts, *each.secondary_opts]) + (f" {each.make_metavar(context)}" if takes else "")),
            first_sentence(each.help or ""),
        )
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and not _OF_ALL & set(each.opts)
        for takes in [not each.is_flag and not each.count]
    ]
    return join_paragraphs(
        (
            f"{'#' * min(2 + max(depth - 1, 0), 4)} {context.command_path}",
            first_sentence(command.help or ""),
            f"```text\n{usage}\n```",
            table(("Option", "Meaning"), options),
        )
    )


# --- metrics, events, platforms --------------------------------------------------------------------------------------


def metrics_page() -> str:
    rows = [
        (code(each.served_name), each.kind.value, each.scope.value, codes(each.labels), first_sentence(each.meaning))
        for each in METRICS
    ]
    return page(
        "Metrics",
        "Every metric that processes serve to Prometheus; [Metrics](../metrics.md) says who serves what, and the "
        "processes also serve `process_*` and `python_*` of the Prometheus client.",
        table(("Metric", "Kind", "Scope", "Labels", "Meaning"), rows),
    )


_LOG_FIELDS = (
    ("timestamp", "string", "When: ISO 8601, UTC, with microseconds."),
    ("level", "string", "`debug`, `info`, `warning`, `error` or `critical`."),
    ("role", "string", "What the process is: `worker`, `api`, `beat`, `gateway` ..."),
    ("event", "string", "What happened: a name of the list below; the message, on a line of another library."),
    ("pid", "integer", "The number of the process."),
    ("logger", "string", "The library, on lines of other libraries alone."),
    ("run_id", "string", "The run, on lines of a step."),
    ("iteration", "integer", "The iteration of the run, on lines of a step."),
    ("attempt", "integer", "The attempt at the step, on lines of a step."),
    ("call", "integer", "The position of the tool call, on lines of a tool call."),
    (
        "trace_id",
        "string",
        "32 hexadecimal digits: on lines of a step while traces are recorded, and on every `run.finished`.",
    ),
    ("span_id", "string", "16 hexadecimal digits: the span of the step, while traces are recorded."),
    ("exception", "string", "The traceback, on lines of an exception."),
)
"""The fields of JSON lines that belong to no single event."""


def events_page(document: Schema) -> str:
    """The events of streams, of hooks and of the log."""
    schemas = document["components"]["schemas"]
    rows = [(code(name), "hook: " + kind.value) for name, kind in HOOK_EVENTS.items()]
    return page(
        "Events",
        "What streams of the API bring, what hooks are called for, and what stands in the log.",
        "## Events of a run",
        "Rows of the run, numbered without gaps, in `GET /v1/runs/{run_id}/events`; each also has `event`, `run_id` "
        "and `timestamp`.",
        *(_stream_event(schemas[str(name)]) for name in ROW_FIELDS),
        "## Events of a reply that is being written",
        "They come once and are not told again.",
        *(_stream_event(schemas[name]) for name in LIVE_FIELDS),
        "## Events of lists",
        "The stream `GET /v1/changes`.",
        _stream_event(schemas[LISTS_CHANGED]),
        "## Events of hooks",
        "An observer is told of what is committed, a rewriter is asked before it is ([Hooks](../hooks.md)).",
        table(("Event", "Kind"), rows),
        f"Events of Hermes Agent that never happen here: {codes(sorted(ABSENT_EVENTS))}.",
        "## Why a run waits",
        "`because` of `hermes-worker runs explain RUN` and of `GET /v1/runs/{run_id}/explain`, with its `facts`.",
        table(
            ("Reason", "Meaning"),
            ((code(name), markdown_of(text)) for name, text in member_docstrings(ExplainedReason)),
        ),
        "## Events of the log",
        "With `HERMES_LOG_FORMAT=json` each line is one object. These fields are on all lines, or where the table "
        "says:",
        table(("Field", "Type", "Meaning"), [(code(name), kind, meaning) for name, kind, meaning in _LOG_FIELDS]),
        "What else is on a line are facts of its event: strings, numbers, booleans or null. Secrets are hidden in all.",
        "The field `event` is one of these; those that are counted are in `hermes_process_events_total`.",
        table(
            ("Event", "Meaning", "Counted"),
            [(code(name), first_sentence(each), "yes" if name in COUNTED else "") for name, each in EVENTS.items()],
        ),
    )


def member_docstrings(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """The values of an enumeration with their docstrings."""
    [declared] = ast.parse(inspect.getsource(kind)).body
    for member, text in pairwise(declared.body if isinstance(declared, ast.ClassDef) else ()):
        if isinstance(member, ast.Assign) and isinstance(text, ast.Expr):
            yield ast.literal_eval(member.value), ast.literal_eval(text.value)


def _stream_event(schema: Schema) -> str:
    rows = [
        (code(name), *cells) for name, *cells in _field_cells(schema) if name not in {"event", "run_id", "timestamp"}
    ]
    parts = (
        f"### `{schema['title']}`",
        first_sentence(schema.get("description", "")),
        table(("Field", "Type", "Needed", "Meaning"), rows),
    )
    return join_paragraphs(parts)


def platforms_page() -> str:
    """The chat platforms: what is sent to each, how it is listened to, and which variables that takes."""
    rows = list(list_platforms().values())
    return page(
        "Chat platforms",
        "What each platform takes and brings; [Where answers go](../deliveries.md) and [Chats](../gateway.md) say how "
        "to use them, and [Platforms](../platforms.md) on which systems this runs.",
        "## Sending",
        "Mail goes over SMTP ([its variables](../deliveries.md#platforms-and-credentials)); secrets are in bold.",
        table(
            ("Platform", "Longest message", "Files", "Edits", "Home channel", "Variables"),
            [_sending_cells(row) for row in rows if row.has_adapter],
        ),
        "Names that are understood and to which nothing is sent: "
        f"{codes(row.name for row in rows if not row.has_adapter)}.",
        "## Listening",
        "A platform is listened to when the variables of one way are set ([how](../gateway.md)).",
        table(
            ("Platform", "Ways, and what each needs", "Files", "Other variables", "Tried with"),
            [_receiving_cells(row) for row in rows if row.receiving is not None],
        ),
    )


def _sending_cells(row: Platform) -> tuple[str, ...]:
    sending = row.sending
    names = code(row.name) + (f" ({codes(row.aliases)})" if row.aliases else "")
    limit = f"{row.limit.size_max:,} {'UTF-16 units' if row.limit.unit.value == 'utf16' else row.limit.unit.value}"
    home = code(row.home_variable or "")
    if sending is None:
        return names, limit, "yes", "", home, ""
    files, edits = "yes" if sending.takes_files else "no", "yes" if sending.edits else "no"
    return names, limit, files, edits, home, _variables(sending.variables, sending.secrets)


def _variables(variables: Mapping[str, str], secrets: Iterable[str]) -> str:
    return ", ".join(f"**{code(name)}**" if each in secrets else code(name) for each, name in variables.items())


def _receiving_cells(row: Platform) -> tuple[str, ...]:
    receiving = row.receiving
    assert receiving is not None
    ways, needed = [], set()
    for mode in InboundMode:
        if mode in receiving.modes:
            fields = receiving.required[mode]
            needed |= set(fields)
            ways.append(f"{mode.value}: {_variables({each: receiving.variables[each] for each in fields}, ())}")
    others = {each: name for each, name in receiving.variables.items() if each not in needed}
    tried = "a stand-in" if receiving.is_unverified else "a real server"
    return code(row.name), "; ".join(ways), "yes" if receiving.gives_files else "no", _variables(others, ()), tried


# --- columns ---------------------------------------------------------------------------------------------------------


def columns_page() -> str:
    """Every column that holds text, by table, and whether it is encrypted."""
    rows = []
    for each in sorted(load_schema().tables.values(), key=lambda each: each.name):
        texts = [column for column in each.columns if isinstance(column.type, sa.String | SealedText | PlacedText)]
        sealed = [column.name for column in texts if isinstance(column.type, SealedText)]
        clear = [column.name for column in texts if column.name not in sealed]
        if texts:
            rows.append((code(each.name), codes(sealed), codes(clear)))
    return page(
        "Columns of text",
        "Every column of the database that holds text, and whether it is encrypted where there are keys; "
        "[Encryption at rest](../encryption.md#columns) says what stays in clear, and why.",
        table(("Table", "Encrypted", "Clear"), rows),
    )


# --- tools -----------------------------------------------------------------------------------------------------------

_LOOKS = "it only looks"
_SPENDS = "the same question again costs a request and changes nothing"
_FURTHER = "a second time it would be further"
WHY: Final[Mapping[str, str]] = {
    "browser_back": _FURTHER,
    "browser_cdp": "a DevTools command may do anything",
    "browser_click": "a click may buy something",
    "browser_console": "an expression may do anything",
    "browser_get_images": _LOOKS,
    "browser_navigate": "opening a link may use it up",
    "browser_press": "Enter sends forms",
    "browser_scroll": _FURTHER,
    "browser_snapshot": _LOOKS,
    "browser_type": "pages act on what is typed",
    "browser_vision": "it only looks, and the question to the model is a row of its own",
    "clarify": "the call says what is asked for; the question is a row that the parking transaction writes",
    "cronjob": "a job that is made or run twice is two jobs, or two runs",
    "delegate_task": "the call says what is asked for; the parking transaction makes the children",
    "execute_code": "a program may do anything, and so may the tools that it calls",
    "ha_call_service": "a switch that is toggled twice is where it was",
    "ha_get_state": _LOOKS,
    "ha_list_entities": _LOOKS,
    "ha_list_services": _LOOKS,
    "hindsight_recall": _LOOKS,
    "honcho_search": _LOOKS,
    "image_generate": "each picture is paid for and is another one",
    "mem0_search": _LOOKS,
    "memory": "the store knows a change by the key of its call",
    "patch": "a change that was made is not found again, or is made twice",
    "process": "a program that reads a line twice acts twice",
    "process kill": "an id is given to one process ever, and one that has ended stays so",
    "process list": _LOOKS,
    "process log": "that the end was seen is written twice with the same effect",
    "process poll": "that the end was seen is written twice with the same effect",
    "process wait": "that the end was seen is written twice with the same effect",
    "read_file": _LOOKS,
    "search_files": _LOOKS,
    "send_message": "the outbox knows a message by the key of its call",
    "session_search": _LOOKS,
    "skill_manage": "the store knows a change by the key of its call",
    "skill_view": "a run's skills never change, and a file that it lays out has their hash in its path",
    "skills_list": "a run's skills never change",
    "terminal": "a command may do anything",
    "text_to_speech": "each recording is paid for, and is a file",
    "todo": "the transaction that settles the call writes the list",
    "tool_call": "what it names is called, with the class of that tool",
    "tool_describe": "it looks at what the session stores",
    "tool_search": "it looks at what the session stores",
    "vision_analyze": _SPENDS,
    "web_extract": "it fetches with GET, which changes nothing",
    "web_search": _SPENDS,
    "write_file": "the same content in the same place",
}


def tool_specs() -> Iterator[ToolSpec]:
    """All tools that come with the product, whatever is enabled."""
    for extension in load_built_in():
        yield from (tool.spec for tool in extension.tools)
    for found in list_addons():
        yield from (tool.spec for tool in load_reference(f"hermes_worker.addons.{found.name}:EXTENSION").tools)
    yield from (tool.spec for tool in build_browser_extension(has_cdp=True).tools)
    yield from build_bridge_specs(1)


def replay_classes() -> dict[str, str]:
    """The replay class of each tool, and of a value that has another one (``process kill``)."""
    found: dict[str, str] = {}
    for spec in tool_specs():
        found[spec.name] = spec.replay.value
        if spec.replay_by is not None:
            found |= {f"{spec.name} {value}": replay.value for value, replay in spec.replay_by[1].items()}
    return found


def replay_table(of: Mapping[str, str], why: Mapping[str, str] = WHY) -> str:
    """Render the table of tools and their replay classes, with the reason for each. Raises ``LookupError`` when a tool
    has no reason yet."""
    if lacking := sorted(of.keys() - why.keys()):
        raise LookupError(
            f"{', '.join(lacking)}: say in WHY of docs/make_reference.py why the replay class is right, then run "
            "python docs/make_reference.py"
        )
    if surplus := sorted(why.keys() - of.keys()):
        raise LookupError(f"{', '.join(surplus)}: WHY of docs/make_reference.py names what is no tool any more")
    return table(("Call", "Class", "Why"), [(code(name), code(of[name]), why[name]) for name in sorted(of)])


def tools_page() -> str:
    return page(
        "Tools",
        "Every tool of the product and its add-ons, with the class that says what follows when its worker vanishes in "
        "the middle of a call ([Replay classes](../dispatch.md#replay-classes)).",
        replay_table(replay_classes()),
    )


# --- providers -------------------------------------------------------------------------------------------------------


def providers_page() -> str:
    providers = [
        (
            f"{code(row.name)}{' (asked)' if row.is_called else ''}",
            codes(row.aliases),
            code(row.base_url) if row.base_url else row.address_form or "yours",
            codes(row.key_variables) or "none",
            code(row.wire or row.home_wire or "chat_completions") + (", by model" if row.model_wires else ""),
        )
        for row in list_provider_rows().values()
    ]
    wires = [
        (code(row.name), f"`[{row.extra}]`" if row.extra else "", "yes" if row.is_called else "unverified live")
        for row in list_wire_rows().values()
    ]
    return page(
        "Providers and wires",
        "Who serves models, by the name that `HERMES_PROVIDER` takes; [Providers](../providers.md) says how one is "
        "chosen, and what happens when one fails.",
        "The key is the first of its variables that is set. Providers that are not marked *asked* are **unverified "
        "live**.",
        table(("Provider", "Also called", "Address", "Key", "Wire"), providers),
        "## Wires",
        table(("Wire", "Extra", "Spoken to its vendor"), wires),
    )


# --- all pages -------------------------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Every page of the reference by the name of its file."""
    before = installed.get_installed()
    installed.put_in_force(installed.get_only_built_in())
    try:
        return {name: make() for name, make in _makers(openapi_document()).items()}
    finally:
        installed.put_in_force(before)


def _makers(document: Schema) -> Mapping[str, Callable[[], str]]:
    return {
        "settings.md": settings_page,
        "api.md": lambda: api_page(document),
        "api-objects.md": lambda: objects_page(document),
        "cli.md": cli_page,
        "metrics.md": metrics_page,
        "events.md": lambda: events_page(document),
        "platforms.md": platforms_page,
        "columns.md": columns_page,
        "tools.md": tools_page,
        "providers.md": providers_page,
    }


def write_help_page() -> None:
    """Write the help of the whole command line anew (``cli.help_page``)."""
    options = {**commands.context_settings, "terminal_width": help_page.WIDTH - 2}
    context = click.Context(commands, info_name="hermes-worker", **options)
    path = Path(help_page.__file__)
    before, mark, _ = path.read_text(encoding="utf-8").partition('PAGE = """\\\n')
    path.write_text(f'{before}{mark}{commands.get_help(context)}\n"""\n', encoding="utf-8")


if __name__ == "__main__":
    try:
        write_help_page()
        for name, text in pages().items():
            (FOLDER / name).write_text(text, encoding="utf-8")
    except LookupError as error:
        sys.exit(str(error))
