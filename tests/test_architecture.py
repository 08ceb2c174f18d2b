"""The map of rooms, held to its word: who imports whom, who reads the environment, who opens the database."""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import get_origin

import pytest
import sqlalchemy as sa

from hermes_worker.extension import load_reference
from hermes_worker.features import FEATURES
from hermes_worker.store import tables
from hermes_worker.store.whole_schema import load_schema

pytestmark = pytest.mark.nightly  # of texts and lists: .ci/run plays it

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hermes_worker"


def sources(*folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


_LINES_MAX = 60
_MODULE_NAME = re.compile(r"(?:hermes_worker|scheduler)(?:\.\w+)+")


@dataclass(slots=True)
class Source:
    """What the tests below ask about a file. To parse and walk all of them takes seconds, so it is done once."""

    path: Path
    imported: set[str] = field(default_factory=set)
    taken: set[str] = field(default_factory=set)
    """What is taken out of a package (``from package import module``), with its package."""
    long_functions: list[str] = field(default_factory=list)
    modules_named: list[str] = field(default_factory=list)
    """In texts."""
    makes_module_names: bool = False
    asserted: list[str] = field(default_factory=list)
    """Lines that assert that a value is not ``None``."""

    @property
    def module(self) -> str:
        return ".".join(self.path.relative_to(ROOT).with_suffix("").parts)


@cache
def read_sources(*folders: str) -> list[Source]:
    return [read_source(path, text) for path, text in sources(*folders)]


def read_source(path: Path, text: str) -> Source:
    found, lines = Source(path), text.splitlines()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import(names=names):
                found.imported |= {alias.name for alias in names}
            case ast.ImportFrom(module=str(module), names=names):
                found.imported.add(module)
                found.taken |= {f"{module}.{alias.name}" for alias in names}
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if (node.end_lineno or 0) - node.lineno >= _LINES_MAX:
                    found.long_functions.append(f"{path.relative_to(ROOT)}:{node.lineno} {name}")
            case ast.Assert(test=condition) if "is not None" in ast.unparse(condition):
                found.asserted.append(lines[node.lineno - 1])
            case ast.Constant(value=str(name)) if _MODULE_NAME.fullmatch(name):
                found.modules_named.append(name)
            case ast.JoinedStr(values=[ast.Constant(value=str(name)), *_]) if name.startswith("hermes_worker."):
                found.makes_module_names = True
    return found


@dataclass(frozen=True)
class Room:
    """A row of rooms.toml: a package, a module that stands by itself, or one kind of module of all features."""

    name: str
    module: str
    may_import: frozenset[str]


_ROOMS = tomllib.loads((ROOT / "tests" / "rooms.toml").read_text(encoding="utf-8"))
_EXCEPTIONS: dict[str, list[str]] = _ROOMS["exceptions"]
_ROOTS: list[str] = _ROOMS["composition"]["roots"]


def rooms() -> list[Room]:
    return [
        Room(
            name=path.removeprefix("hermes_worker/").removesuffix(".py"),
            module=path.removesuffix(".py").replace("/", "."),
            may_import=frozenset(allowed),
        )
        for path, allowed in _ROOMS["rooms"].items()
    ]


def modules() -> set[str]:
    names = set()
    for path, _ in sources("hermes_worker", "scheduler"):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name != "hermes_worker":
            names.add(name)
    return names


def feature_of(module: str) -> str | None:
    """The feature in whose folder a module stands; ``None`` for the kernel's and for the table of features."""
    parts = module.split(".")
    return parts[2] if module.startswith("hermes_worker.features.") else None


def room_of(module: str, among: list[Room]) -> Room | None:
    """The narrowest room: ``scheduler/beat.py`` stands in ``scheduler`` and is a room of its own. A module of a
    feature stands in the room that its last word names."""
    if feature_of(module) is not None:
        kind = next(iter(module.split(".")[3:]), "declaration").rpartition("_")[2]
        return next((room for room in among if room.name == f"features/{kind}"), None)
    holds = [room for room in among if module == room.module or module.startswith(f"{room.module}.")]
    return max(holds, key=lambda room: len(room.module), default=None)


def test_every_module_stands_in_a_room_and_every_room_holds_one() -> None:
    found = {module: room_of(module, rooms()) for module in modules()}
    assert [module for module, room in found.items() if room is None] == []
    assert {room.name for room in rooms()} == {room.name for room in found.values() if room is not None}


def test_a_room_imports_rooms_above_it_only() -> None:
    above: set[str] = set()
    for room in rooms():
        assert room.may_import <= above, f"{room.name} may import {sorted(room.may_import - above)}, which stand below"
        above.add(room.name)


def test_every_import_is_one_that_the_map_allows(tmp_path: Path) -> None:
    """Import-linter judges; its contracts are made from rooms.toml, one for each room."""
    contents: dict[str, list[str]] = {room.name: [] for room in rooms()}
    for module in sorted(modules()):
        if (room := room_of(module, rooms())) is not None:
            contents[room.name].append(module)
    lines = ["[importlinter]", "root_packages =", "    hermes_worker", "    scheduler"]
    lines += ["include_external_packages = False", "exclude_type_checking_imports = True"]
    excepted = [line for lines_of in _EXCEPTIONS.values() for line in lines_of]
    for room in rooms():
        refused = [name for name in contents if name != room.name and name not in room.may_import]
        lines += [f"[importlinter:contract:{room.module}]", f"name = {room.name} imports what the map allows"]
        lines += ["type = forbidden", "allow_indirect_imports = True", "as_packages = False"]
        lines += ["source_modules =", *(f"    {module}" for module in contents[room.name])]
        lines += ["forbidden_modules =", *(f"    {module}" for name in refused for module in contents[name])]
        lines += ["unmatched_ignore_imports_alerting = none", "ignore_imports =", *(f"    {line}" for line in excepted)]
    config = tmp_path / "contracts.ini"
    config.write_text("\n".join(lines), encoding="utf-8")
    found = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache", "--config", str(config)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr
    assert f"Contracts: {len(rooms())} kept, 0 broken" in found.stdout


def test_the_kernel_names_no_feature_and_no_feature_names_another() -> None:
    """But for what rooms.toml lists, which may only become less. The composition roots name both; the rules
    and the schema of a feature are pure, and public to other features."""
    ours = modules()
    kernel, features = set(), set()
    for file in read_sources("hermes_worker", "scheduler"):
        source = file.module.removesuffix(".__init__")
        imported_here = (file.imported | file.taken) & ours
        for found in imported_here:
            # "from package import module" names both.
            is_whole = not any(other.startswith(f"{found}.") for other in imported_here)
            if feature_of(found) in (None, feature_of(source)) or source in _ROOTS or not is_whole:
                continue
            if feature_of(source) is None:
                kernel.add(f"{source} -> {found}")
            elif not found.endswith(("rules", "schema")):
                features.add(f"{source} -> {found}")
    assert sorted(kernel) == sorted(_EXCEPTIONS["kernel_names_feature"])
    assert sorted(features) == sorted(_EXCEPTIONS["feature_names_feature"])


def test_the_kernel_names_no_feature_in_texts() -> None:
    """Neither as the name of a module nor as a reference. The catalogue does, and the composition roots."""
    for path, text in sources("hermes_worker", "scheduler"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if feature_of(module) is not None or module in (*_ROOTS, "hermes_worker.features"):
            continue
        assert re.search(r"""["']hermes_worker\.features\.\w""", text) is None, path


def test_a_table_stands_with_the_one_feature_that_reads_it_and_is_declared() -> None:
    readers: dict[str, set[str | None]] = {}
    for file in read_sources("hermes_worker", "scheduler"):
        for name in file.taken:
            if name.startswith("hermes_worker.store.tables."):
                readers.setdefault(name.rpartition(".")[2], set()).add(feature_of(file.module))
    kernel = {name: table for name, table in vars(tables).items() if isinstance(table, sa.Table)}
    assert {name: readers[name] for name in kernel if len(readers[name]) == 1 and None not in readers[name]} == {}

    found, declared = {}, {}
    for path in sorted((PACKAGE / "features").glob("*/tables.py")):
        package = f"hermes_worker.features.{path.parent.name}"
        here = importlib.import_module(f"{package}.tables")
        found |= {f"{package}.tables:{name}": one for name, one in vars(here).items() if isinstance(one, sa.Table)}
    for reference in FEATURES:
        declared |= {one: load_reference(one) for one in load_reference(reference).tables}
    assert declared == found and len(found) > 8
    assert set(load_schema().tables) == {table.name for table in (*kernel.values(), *found.values())}
    for name, table in found.items():
        column = table.info.get("owner")
        assert column in (None, "run_pk", "session_pk", "tenant"), name
        if column in ("run_pk", "session_pk"):  # so they are deleted with their owner
            assert {key.ondelete for key in table.c[column].foreign_keys} == {"CASCADE"}, name


def test_who_walks_over_all_tables_asks_the_whole_schema() -> None:
    """``metadata`` alone has the tables only that this process has imported."""
    for file in read_sources("hermes_worker", "scheduler"):
        if "hermes_worker.store.tables.metadata" in file.taken and file.path.stem != "tables":
            # Alembic's entry takes the names of constraints from it.
            assert file.path.stem == "whole_schema" or file.path.match("migrations/env.py"), file.path


def test_every_feature_stands_in_the_catalogue() -> None:
    folders = [path.parent.name for path in sorted((PACKAGE / "features").glob("*/__init__.py"))]
    assert [f"hermes_worker.features.{name}:EXTENSION" for name in folders] == list(FEATURES)


def test_class_names_are_unique() -> None:
    """But for parallel modules, which a contract makes alike: the wires and the platforms."""
    alike: dict[str, str | tuple[str, ...]] = {
        "Dialect": "hermes_worker/models/wires/",
        "Credentials": ("hermes_worker/channels/platforms/", "hermes_worker/channels/inbound/"),
    }
    alike["Socket"] = "hermes_worker/channels/inbound/"
    seen: dict[str, str] = {}
    for path, text in sources("hermes_worker", "scheduler"):
        place = path.relative_to(ROOT).as_posix()
        for name in re.findall(r"^\s*class (\w+)", text, re.MULTILINE):
            if not place.startswith(alike.get(name, "-")):
                assert name not in seen, f"{name} is a class of {seen[name]} and of {place}"
                seen[name] = place


def test_a_turn_is_a_run_and_nothing_that_a_run_waits_for() -> None:
    """What it waits for is to be the active run of its session."""
    other = re.compile(r"session's turn|\bwait\w*( for)? (its|their|his|your|our) turn|\b(has|take[sn]?|took) the turn")
    texts = [
        *sources("hermes_worker", "scheduler"),
        *((path, path.read_text()) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]),
    ]
    for path, text in texts:
        assert other.search(" ".join(text.split())) is None, path


def test_core_imports_only_the_standard_library_and_itself() -> None:
    for path, text in sources("hermes_worker/core"):
        for name in imported(ast.parse(text)):
            top = name.split(".")[0]
            is_core = name == "hermes_worker.core" or name.startswith("hermes_worker.core.")
            assert is_core or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Not even for types, and not inside of functions: such a pair is one module in two files."""
    files = {file.module: file for file in read_sources("hermes_worker", "scheduler")}
    imports = {name: (file.imported | file.taken) & files.keys() - {name} for name, file in files.items()}
    assert sum(map(len, imports.values())) > 3_000, "the modules were found"
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the circle


NEEDED_WITH_EXTRAS = {
    "hermes_worker/agent/tools/document_program.py": "documents",
    "hermes_worker/browser/visits.py": "browser",
    "hermes_worker/browser/relay.py": "browser",
    "hermes_worker/channels/apprise_services.py": "apprise",
    "hermes_worker/cli/flower_server.py": "flower",
    "hermes_worker/features/object_storage/bucket_files.py": "s3",
    "hermes_worker/metrics/pushing.py": "otel",
    "hermes_worker/models/wires/bedrock_converse.py": "bedrock",
    "hermes_worker/models/wires/event_stream.py": "bedrock",
    "hermes_worker/net/frames.py": "gateway",
    "hermes_worker/tracing/exporting.py": "otel",
    "hermes_worker/tracing/log_exporting.py": "otel",
    "hermes_worker/workspaces/remote/kubernetes.py": "kubernetes",
    "hermes_worker/testing/plugin.py": "test",
    "hermes_worker/workspaces/remote/ssh.py": "ssh",
}
"""Modules that are imported with an extra only, and which one declares what they need."""


def test_every_import_of_others_is_declared() -> None:
    """What somebody else's requirement brings today is gone when that one changes its own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    base, extras = project["dependencies"], project["optional-dependencies"]
    installed = packages_distributions()
    undeclared = []
    for file in read_sources("hermes_worker", "scheduler"):
        name = file.path.relative_to(ROOT).as_posix()
        declared = distributions([*base, *extras.get(NEEDED_WITH_EXTRAS.get(name), ())])
        siblings = {
            each.stem for each in file.path.parent.glob("*.py")
        }  # the sandbox's helper runs from its own folder
        for module in {each.partition(".")[0] for each in file.imported} - siblings:
            is_own = module in sys.stdlib_module_names or module in ("hermes_worker", "scheduler")
            if not is_own and not distributions(installed.get(module, [module])) & declared:
                undeclared.append(f"{name} imports {module}")
    assert undeclared == []


def distributions(requirements: Iterable[str]) -> set[str]:
    """The names in requirements, as registries compare them."""
    names = (re.match(r"[\w.-]+", each) for each in requirements)
    return {re.sub(r"[-_.]+", "-", name[0]).lower() for name in names if name}


def test_only_the_store_and_rows_of_features_execute_sql() -> None:
    """The crash lab's auditor and the doctor look at the database too; neither writes."""
    for path, text in sources("hermes_worker", "scheduler"):
        holds_sql = {"store", "lab"} & set(path.parts) or (
            "features" in path.parts and path.stem.endswith(("rows", "tables"))
        )
        # Most files do not even mention the tables, and to parse them all takes seconds.
        if holds_sql or "hermes_worker.store.tables" not in text:
            continue
        for name in imported(ast.parse(text)):
            assert not name.startswith("hermes_worker.store.tables"), f"{path} reads tables directly"


THEMSELVES = {
    "backup": "a backup and a restore read and write the database itself",
    "doctor": "it looks at the database itself, and at what is wrong with it",
    "doctor_fleet": "of doctor",
    "doctor_providers": "of doctor",
    "doctor_repairs": "of doctor",
    "doctor_workspaces": "of doctor",
    "features/mcp_servers/checks": "of doctor",
    "features/object_storage/checks": "of doctor",
    "features/provider_keys/checks": "of doctor",
    "features/webhooks/checks": "of doctor",
    "features/encryption/verbs": "it seals the texts of the database itself again",
    "features/forks/rehearsal_verbs": "it copies the database itself, and works on the copy",
    "features/mcp_servers/verbs": "it starts the server of a file of this machine, to ask what it offers",
    "follow": "of run",
    "gateway": "it starts a role",
    "copies": "status and up say of a home that it is a copy, whatever runs there",
    "init": "it tries a provider and a target before anything runs",
    "mcp_logins": "it keeps what a browser of this machine brought",
    "options": "it begins processes of the fleet with the configuration of the fleet",
    "preflight": "it looks at credentials of this machine",
    "records": "of run and workspaces",
    "roles": "it starts processes, and migrates",
    "running": "run starts a stack of its own, hands it the task and shows what it does",
    "stack": "it starts processes",
    "up": "it starts processes",
    "workspaces": "it removes directories and containers of this machine",
}
"""Modules of the command line that work at an installation itself, and why. All others ask the API."""


def commands() -> Iterator[tuple[Path, str]]:
    yield from sources("hermes_worker/cli")
    kinds = ("verbs", "backend", "checks")
    yield from ((path, text) for path, text in sources("hermes_worker/features") if path.stem.endswith(kinds))


_OF_ROWS = ("hermes_worker.store.", "hermes_worker.services.", "hermes_worker.wiring.", "hermes_worker.live_settings.")
_ROWS_ELSEWHERE = re.compile(r"hermes_worker\.features\.\w+\.(\w+_)?(rows|service)\b|hermes_worker\.(\w+\.)+build\b")


def _is_value(found: object) -> bool:
    """Something that only says what there is: no function, and nothing that holds a database."""
    if isinstance(found, type):
        says = dataclasses.is_dataclass(found) or issubclass(found, enum.Enum | tuple | Exception | dict)
        return says and "database" not in getattr(found, "__annotations__", {})
    return get_origin(found) is not None or isinstance(found, str | int | float | tuple)


def test_the_command_line_asks_the_api_and_no_database() -> None:
    asking = {}
    for path, text in commands():
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
        named = [
            f"{node.module}.{alias.name}"
            for node in nodes
            for alias in node.names
            if (f"{node.module}.".startswith(_OF_ROWS) or _ROWS_ELSEWHERE.match(str(node.module)))
            and not _is_value(getattr(importlib.import_module(str(node.module)), alias.name))
        ]
        if named:
            asking[path.relative_to(PACKAGE).with_suffix("").as_posix().removeprefix("cli/")] = named
    assert {name: named for name, named in asking.items() if name not in THEMSELVES} == {}
    assert set(THEMSELVES) <= set(asking), "these no longer need to be excepted"


def test_task_names_are_written_out() -> None:
    from hermes_worker.broker.queue import TaskName

    names = {
        "hermes.iterate",
        "hermes.prepare",
        "hermes.call_tool",
        "hermes.ask_auxiliary",
        "hermes.deliver",
        "hermes.collect",
        "hermes.call_hook",
        "hermes.gather_artifacts",
        "hermes.fetch_file",
        "hermes.maintain",
    }
    assert {name.value for name in TaskName} == names


def test_modules_import_without_side_effects() -> None:
    names = ("hermes_worker", "hermes_worker.core.step", "hermes_worker.store.runs.runs", "scheduler")
    code = "; ".join(f"import {name}; assert threading.active_count() == 1, {name!r}" for name in names)
    subprocess.run([sys.executable, "-c", f"import threading; {code}"], check=True, cwd=ROOT)


def test_who_asks_no_model_loads_no_sdk() -> None:
    """A scheduler, an API and a worker for tools start in half the time, and are a third smaller."""
    roles = "scheduler.beat, hermes_worker.api.server, hermes_worker.worker.main, hermes_worker.tasks.message_parts"
    code = f"import sys, {roles}; assert not {{'openai', 'anthropic'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


_RUNS_HERE = "hermes_worker.agent.tools.", "hermes_worker.models.wires.", "hermes_worker.channels.platforms."
_DECLARES = {"builtin", "catalog"}


@pytest.mark.parametrize(
    "role",
    ["scheduler.beat", "hermes_worker.api.server", "hermes_worker.services.submission", "hermes_worker.cli.entry"],
)
def test_who_only_tells_of_tools_and_providers_loads_none(role: str) -> None:
    """Declarations load everywhere, implementations where they run."""
    code = (
        f"import sys, {role}; from hermes_worker.agent.tools.catalog import get_declared_catalog\n"
        "from hermes_worker.models.catalog import find_provider\n"
        "from hermes_worker.channels.catalog import find_platform\n"
        "assert get_declared_catalog().get_spec('terminal') and find_provider('openai') and find_platform('slack')\n"
        f"ours = [name for name in sys.modules if name.startswith({_RUNS_HERE!r})]\n"
        f"found = [name for name in ours if name.rpartition('.')[2] not in {_DECLARES!r}]\n"
        "found += {'PIL', 'hermes_worker.workspaces.local', 'hermes_worker.agent.fetching'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


_STARTING = re.compile(
    r"\bsubprocess\.(?:run|Popen|call|check_call|check_output)\("
    r"|\bos\.(?:fork|forkpty|system|popen|posix_spawnp?|exec[lv]p?e?|spawn\w+)\("
    r"|\bcreate_subprocess_|\bmultiprocessing\b|\bProcessPoolExecutor\b|\bpty\.spawn\b|_SYS_CLONE\["
)


def test_every_module_that_starts_processes_has_a_row() -> None:
    """What a model asks for must go through the workspace; a new way to start something is a decision."""
    table = (ROOT / "tests" / "process_starters.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]+\.py)`", table.partition("| module |")[2]))
    named = {f"workspaces/sandbox/{name}" if name.startswith("helper/") else name for name in named}
    found = {
        path.relative_to(PACKAGE if PACKAGE in path.parents else ROOT).as_posix()
        for path, text in sources("hermes_worker", "scheduler")
        if _STARTING.search(text)
    }
    assert named == found


def test_a_worker_takes_every_message_that_is_sent() -> None:
    """From the queues of its kind, with arguments of its form."""
    from hermes_worker.broker import transport
    from hermes_worker.broker.queue import TaskName

    assert set(transport._ARGUMENTS) == set(transport._QUEUES) == set(TaskName)


def test_no_function_is_longer_than_a_screen() -> None:
    """Migrations aside, which are generated."""
    ours = [file for file in read_sources("hermes_worker", "scheduler") if "migrations" not in file.path.parts]
    assert [longer for file in ours for longer in file.long_functions] == []


def test_a_type_says_what_is_there_and_no_assertion() -> None:
    """Where the type of a library says less than is true, the line says so."""
    asserted = [line for file in read_sources("hermes_worker", "scheduler") for line in file.asserted]
    assert len(asserted) <= 5, asserted
    assert [line for line in asserted if "# the library's type" not in line] == []


_MADE_ELSEWHERE = {"entry.py", "warm_server.py"}
"""Files that make names of modules out of rows (commands, wires) which tests load one by one."""


def source_of(module: str) -> str | None:
    place = ROOT.joinpath(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()]
    return found[0].read_text(encoding="utf-8") if found else None


def is_there(name: str) -> bool:
    """A module, or something in one."""
    parent, _, attribute = name.rpartition(".")
    return source_of(name) is not None or bool(re.search(rf"\b{attribute}\b", source_of(parent) or ""))


def test_modules_that_are_named_in_texts_are_there() -> None:
    """A name in a text is seen by no type checker, and by nobody who moves a module. So it is written out whole."""
    missing, made = [], []
    for file in [*read_sources("hermes_worker", "scheduler"), *read_sources("tests/support")]:
        missing += [(file.path.name, name) for name in file.modules_named if not is_there(name)]
        made += [file.path.name] if file.makes_module_names else []
    assert missing == [("plugins.py", "hermes_worker.extensions")], "that is a group of entry points"
    assert set(made) <= _MADE_ELSEWHERE, "write the whole name"


def test_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their names alone, and refuses the second one."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
