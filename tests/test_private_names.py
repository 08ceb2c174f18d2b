"""Private names of libraries that we use: each stands in a table, with what it is for and what to do when it is gone.

A name that begins with ``_`` may change in any release of its library. When it does, a test here fails with a sentence
instead of a run with a traceback. A new use of a private name fails as well, until it is in the table.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("hermes_worker", "scheduler")

DOCUMENTED = {
    "os._exit": "https://docs.python.org/3/library/os.html#os._exit",
    "_asdict": "named tuples",
    "_fields": "named tuples",
    "_make": "named tuples",
    "_replace": "named tuples",
}
"""Names that begin with an underscore so as not to hide what users call theirs, and that are promised all the same."""


@dataclass(frozen=True, kw_only=True)
class PrivateName:
    """One private name of a library and every file of ours that uses it."""

    where: str
    """``module`` or ``module:Class``."""
    name: str
    files: tuple[str, ...]
    used_for: str
    instead: str
    """What to do when a release no longer has it, or has it with other parameters."""
    takes: str | None = None
    """The parameters of a function, by name."""

    @property
    def library(self) -> str:
        return self.where.partition(".")[0].partition(":")[0]


_TRANSPORT = ("hermes_worker/broker/transport.py",)
_READ_AGAIN = (
    "Read kombu/transport/redis.py again, adapt hermes_worker/broker/transport.py to it, and play tests/tasks/"
    "test_transport.py and tests/faults/test_hostile_broker.py."
)
_NO_TEMPLATE = (
    "Look for a hook of the SDK that builds the request; or drop the override: requests are then built by the SDK each "
    "time, which is right and costs more CPU (tests/providers/test_templates.py)."
)
_NO_ERROR = (
    "Look for a public way to make the SDK's error of a response; or let the SDK send every request: drop "
    "RequestTemplates.send, which is right and costs more CPU."
)
_STARTUP = (
    "Import the public module in its place. It imports enum, so measure how long a confined command takes to start."
)


def _channel(name: str, used_for: str, takes: str | None = None) -> PrivateName:
    return PrivateName(
        where="kombu.transport.redis:Channel",
        name=name,
        files=_TRANSPORT,
        used_for=used_for,
        instead=_READ_AGAIN,
        takes=takes,
    )


TABLE = (
    PrivateName(
        where="openai:OpenAI",
        name="_build_request",
        files=("hermes_worker/models/wires/openai_client.py",),
        used_for="to build the headers and the URL of requests to one endpoint once",
        instead=_NO_TEMPLATE,
        takes="self, options, retries_taken",
    ),
    PrivateName(
        where="anthropic:Anthropic",
        name="_build_request",
        files=("hermes_worker/models/wires/anthropic_messages.py",),
        used_for="to build the headers and the URL of requests to one endpoint once",
        instead=_NO_TEMPLATE,
        takes="self, options, retries_taken",
    ),
    PrivateName(
        where="openai:OpenAI",
        name="_make_status_error_from_response",
        files=("hermes_worker/models/wires/openai_client.py",),
        used_for="to raise the SDK's own error for an answer to a request that was sent past it",
        instead=_NO_ERROR,
        takes="self, response",
    ),
    PrivateName(
        where="anthropic:Anthropic",
        name="_make_status_error_from_response",
        files=("hermes_worker/models/wires/anthropic_messages.py",),
        used_for="to raise the SDK's own error for an answer to a request that was sent past it",
        instead=_NO_ERROR,
        takes="self, response",
    ),
    PrivateName(
        where="anthropic:Anthropic",
        name="_custom_headers",
        files=("hermes_worker/models/wires/anthropic_messages.py",),
        used_for="to empty what the SDK takes from ANTHROPIC_CUSTOM_HEADERS, which would win over ours",
        instead="Find where the SDK keeps them now, or a parameter that turns them off (test_the_environment_adds_"
        "nothing_to_a_request says whether they are off).",
    ),
    _channel("_brpop_start", "to ask for several messages with one command (BLMPOP)", "self, timeout"),
    _channel("_brpop_read", "to read several messages from one reply", "self, options"),
    _channel("_brpop_sent_at", "to say when the command was sent, as kombu's own version does"),
    _channel("_in_poll", "to say which connection waits for messages, as kombu's own version does"),
    _channel("_queue_cycle", "to ask the queues in turn"),
    _channel("_flush_brpop_reauth", "to let in new credentials after a reply, as kombu's own version does", "self"),
    _channel("_create_client", "to keep one Redis client a channel", "self, asynchronous"),
    _channel("_receive_one", "to drop what is published to remote control and is no message", "self, c"),
    _channel("_deliver_fanout_message", "to drop JSON from strangers on remote control", "self, message, exchange"),
    PrivateName(
        where="kombu.transport.virtual:Transport",
        name="_deliver",
        files=_TRANSPORT,
        used_for="to hand a message to its consumer",
        instead=_READ_AGAIN,
        takes="self, message, queue",
    ),
    PrivateName(
        where="kombu.transport",
        name="_transport_cache",
        files=_TRANSPORT,
        used_for="to make kombu forget a transport that it loaded before ours was installed",
        instead="Install ours before anything resolves a transport, or find where kombu keeps them now.",
    ),
    PrivateName(
        where="kombu:Connection",
        name="_ensure_connection",
        files=("hermes_worker/worker/celery.py",),
        used_for="to try a broker that is away again within two seconds; Celery's own waits grow to 30 s",
        instead="Find where Celery's consumer waits between two tries now (celery/worker/consumer/consumer.py).",
        takes="self, errback, max_retries, interval_start, interval_step, interval_max, callback, "
        "reraise_as_library_errors, timeout",
    ),
    *(
        PrivateName(
            where=where,
            name=name,
            files=("hermes_worker/tracing/log_exporting.py",),
            used_for="to send log lines by OTLP; OpenTelemetry has its logs under private names until they are stable",
            instead="Take it from opentelemetry.logs and opentelemetry.sdk.logs, or from where it is now.",
        )
        for where, name in (
            ("opentelemetry._logs", "LogRecord"),
            ("opentelemetry._logs", "SeverityNumber"),
            ("opentelemetry.sdk._logs", "LoggerProvider"),
            ("opentelemetry.sdk._logs.export", "BatchLogRecordProcessor"),
            ("opentelemetry.exporter.otlp.proto.http._log_exporter", "OTLPLogExporter"),
        )
    ),
    PrivateName(
        where="re._constants",
        name="",
        files=("hermes_worker/safety/redaction/rule_import.py",),
        used_for="to read published patterns, when the table of vendors' keys is made anew; never at run time",
        instead="Python has no public parser of patterns: adapt rule_import.py to the new one.",
    ),
    PrivateName(
        where="re._parser",
        name="",
        files=("hermes_worker/safety/redaction/rule_import.py",),
        used_for="to read published patterns, when the table of vendors' keys is made anew; never at run time",
        instead="Python has no public parser of patterns: adapt rule_import.py to the new one.",
    ),
    PrivateName(
        where="_signal",
        name="",
        files=(
            "hermes_worker/workspaces/sandbox/helper/connector.py",
            "hermes_worker/workspaces/sandbox/helper/keeper.py",
            "hermes_worker/workspaces/sandbox/helper/namespace.py",
            "hermes_worker/workspaces/sandbox/helper/starter.py",
        ),
        used_for="to start the helper of the sandbox quickly",
        instead=_STARTUP,
    ),
    PrivateName(
        where="_thread",
        name="",
        files=("hermes_worker/workspaces/sandbox/helper/connector.py",),
        used_for="to answer the connects of a command in threads, without the time that threading takes to import",
        instead=_STARTUP,
    ),
    PrivateName(
        where="_socket",
        name="",
        files=(
            "hermes_worker/workspaces/sandbox/helper/connector.py",
            "hermes_worker/workspaces/sandbox/helper/keeper.py",
        ),
        used_for="to hand a descriptor out of a process that may open no files any more",
        instead="Import the public module before the process is confined.",
    ),
)


@dataclass(frozen=True, order=True)
class Use:
    name: str
    file: str


def product_files() -> Iterator[tuple[str, ast.Module]]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.startswith("_") and not name.startswith("__")


@cache
def uses() -> frozenset[Use]:
    return frozenset(Use(name, file) for file, tree in product_files() for name in private_names(file, tree))


def private_names(file: str, tree: ast.Module) -> Iterator[str]:
    """The private names in a file that are not its own."""
    ours = own_names(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if is_private(name):
                if name not in ours and name not in DOCUMENTED and ast.unparse(node) not in DOCUMENTED:
                    yield name
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, named, *_]):
                if isinstance(named, ast.Constant) and is_private(named.value) and named.value not in ours:
                    yield str(named.value)
            case ast.Import(names=names):
                yield from (each.name for each in names if any(map(is_private, each.name.split("."))))
            case ast.ImportFrom(module=str(module), names=names) if module.partition(".")[0] not in PRODUCT:
                is_inside = module != "__future__" and any(map(is_private, module.split(".")))
                yield from (each.name for each in names if is_inside or is_private(each.name))
            case _:
                pass
    yield from taken_over(file, tree)


def own_names(tree: ast.Module) -> frozenset[str]:
    """What the file defines: functions, classes, variables, attributes that it assigns."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
            case _:
                pass
    return frozenset(names)


def taken_over(file: str, tree: ast.Module) -> Iterator[str]:
    """Private names that a class of the file shares with a class of a library from which it inherits."""
    inheriting = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    if not inheriting or file.endswith("__main__.py"):
        return
    module = importlib.import_module(file.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
    for node in inheriting:
        cls = getattr(module, node.name)
        theirs = frozenset[str]().union(*(names_of(base) for base in cls.__mro__ if is_of_a_library(base)))
        yield from sorted(theirs & mentioned(node))


def is_of_a_library(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in (*PRODUCT, *sys.stdlib_module_names)


def mentioned(node: ast.ClassDef) -> frozenset[str]:
    """Private names that a class defines, or reads and sets on itself."""
    names = set()
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                names.add(name)
            case _:
                pass
    return frozenset(filter(is_private, names))


@cache
def names_of(cls: type) -> frozenset[str]:
    """The private names of a class itself, those among them that only its instances have."""
    names = {name for name in vars(cls) if is_private(name)}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return frozenset(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return frozenset(filter(is_private, names))


def in_table() -> set[Use]:
    return {Use(row.name or row.where, file) for row in TABLE for file in row.files}


def release_of(library: str) -> str:
    if library in sys.stdlib_module_names:
        return f"Python {sys.version.partition(' ')[0]}"
    distribution = packages_distributions()[library][0]
    return f"{distribution} {version(distribution)}"


def has(owner: ModuleType | type, name: str) -> bool:
    """Whether a module or a class has it, or the instances of the class."""
    if hasattr(owner, name):
        return True
    return isinstance(owner, type) and any(name in names_of(cls) for cls in owner.__mro__ if is_of_a_library(cls))


def complaint(row: PrivateName) -> str | None:
    """What is wrong with a name in the release that is installed."""
    module, _, class_name = row.where.partition(":")
    used = f"{' and '.join(row.files)} used it {row.used_for}. {row.instead}"
    try:
        owner = importlib.import_module(module)
        owner = getattr(owner, class_name) if class_name else owner
    except (ImportError, AttributeError):
        return f"{release_of(row.library)} has no {row.where}: {used}"
    if row.name and not has(owner, row.name):
        return f"{release_of(row.library)} has no {row.name} in {row.where}: {used}"
    if row.takes is None:
        return None
    takes = ", ".join(inspect.signature(getattr(owner, row.name)).parameters)
    if takes != row.takes:
        return f"{row.where}.{row.name} of {release_of(row.library)} takes ({takes}), not ({row.takes}): {used}"
    return None


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row.where}.{row.name}".rstrip("."))
def test_a_private_name_is_still_what_we_take_it_for(row: PrivateName) -> None:
    said = complaint(row)
    assert said is None, said


@pytest.mark.nightly
def test_every_private_name_that_we_use_is_in_the_table() -> None:
    unknown = [f"{use.name} in {use.file}" for use in sorted(uses() - in_table())]
    assert unknown == [], "private names of libraries: find a public way, or add a row to TABLE"
    gone = [f"{use.name} in {use.file}" for use in sorted(in_table() - uses())]
    assert gone == [], "not used any more: take them out of TABLE"


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(x):\n    return x._raw", ["_raw"]),
        ("def f(x):\n    return getattr(x, '_raw', None)", ["_raw"]),
        ("from library import _raw", ["_raw"]),
        ("from library._inner import raw", ["raw"]),
        ("import library._inner", ["library._inner"]),
        ("from hermes_worker.core import _ours", []),
        ("class A:\n    def _ours(self): return self._ours()", []),
        ("import os\nos._exit(1)", []),
        ("def f(x):\n    return x.__dict__", []),
    ],
)
def test_the_search_finds_private_names_of_others_and_not_our_own(code: str, names: list[str]) -> None:
    assert list(private_names("one.py", ast.parse(code))) == names


def test_a_release_without_a_name_is_reported_with_what_to_do() -> None:
    row = PrivateName(
        where="kombu:Connection", name="_gone", files=("a.py",), used_for="to connect", instead="Do not.", takes="self"
    )
    said = complaint(row) or ""
    assert said == f"{release_of('kombu')} has no _gone in kombu:Connection: a.py used it to connect. Do not."
    other = PrivateName(
        where="kombu:Connection", name="_debug", files=("a.py",), used_for="to", instead="Do.", takes="self, more"
    )
    assert "takes (self, msg, args, kwargs), not (self, more): a.py used it to. Do." in (complaint(other) or "")
