"""Fixtures for everybody: real servers. None is ever skipped; a server that does not start is an error."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
from support.postgres import PostgresFarm, postgres_farm
from support.programs import add_missing_programs
from support.quick import TESTS, holds_quick_tests, is_quick, refuse_processes_and_servers
from support.samples import leave_one_database_to_the_night
from support.statements import share_compiled_statements
from support.valkey import administrator, emptied, valkey_server

from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.access.audit import set_actor


def pytest_xdist_auto_num_workers() -> int:
    """Two processes more than there are cores: there are always some that wait for servers or workers."""
    return min(8, (os.cpu_count() or 1) + 2)


_PATIENCE_S = 300.0
hypothesis.settings.register_profile(
    "busy machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy machine")
"""No test fails because something else had the processor for a second."""
hypothesis.settings.register_profile("quick", parent=hypothesis.settings.get_profile("busy machine"), max_examples=25)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--no-skips", action="store_true", help="a test that is skipped fails the session")
    parser.addoption("--update-pictures", action="store_true", help="put new pictures into docs/images")
    parser.addoption("--cases", type=int, default=300, help="requests of each kind in the long test of the document")
    parser.addoption("--dialect-cases", type=int, default=10_000, help="requests to each dialect in the test beside it")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("no_skips") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_configure(config: pytest.Config) -> None:
    if runs_quick_tests_only(config):
        hypothesis.settings.load_profile("quick")
        return
    share_compiled_statements()
    add_missing_programs(Path(sys.prefix) / "stand-ins")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell that starts pytest in the background has it ignore Ctrl-C, and so would all that the tests start.
        signal.signal(signal.SIGINT, signal.default_int_handler)


def runs_quick_tests_only(config: pytest.Config) -> bool:
    return bool(config.option.markexpr == "quick")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import the other tests; it takes longer than to run the quick ones."""
    return True if runs_quick_tests_only(config) and not holds_quick_tests(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    leave_one_database_to_the_night(items)
    for item in items:
        if is_quick(item):
            item.add_marker("quick")
    items.sort(key=_patience_s, reverse=True)
    items[:] = _deal_long_tests_first(items, getattr(config, "workerinput", {}).get("workercount", 1))
    if runs_quick_tests_only(config):
        refuse_processes_and_servers()


def _patience_s(item: pytest.Item) -> float:
    """What a test may take beyond the usual. Those that may take long begin first, or all others would wait for one at
    the end."""
    limit = item.get_closest_marker("timeout")
    return 0.0 if limit is None else max(0.0, float(limit.args[0]) - _PATIENCE_S)


_LONG = ("e2e", "faults", "simulation")
"""Folders of tests that take seconds each."""


@cache
def _is_in_long_folder(path: Path) -> bool:
    return any(path.is_relative_to(TESTS / name) for name in _LONG)


def _deal_long_tests_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """xdist gives each worker a stretch of the list, and lets who is done take from the end of another's. So each
    stretch begins with its share of the files of long tests, and what is left for the end is short."""
    long = [item for item in items if _patience_s(item) or _is_in_long_folder(item.path)]
    is_long = set(map(id, long))
    short = iter([item for item in items if id(item) not in is_long])
    dealt: list[pytest.Item] = []
    for workers_left in range(workers, 0, -1):
        size = (len(items) - len(dealt)) // workers_left
        files = [list(group) for _, group in groupby(long, key=lambda item: item.path)]
        share = [item for file in files[::workers_left] for item in file][:size]
        dealt += [*share, *islice(short, size - len(share))]
        is_dealt = set(map(id, share))
        long = [item for item in long if id(item) not in is_dealt]
    return dealt


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the tests themselves and what they import, which stay for good, out of every search for garbage."""
    gc.disable()
    try:
        _import_own_share(session.config)
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.set_threshold(10_000, 10, 10)


def _import_own_share(config: pytest.Config) -> None:
    """In a fresh checkout pytest rewrites the assertions of every module, which takes as long as all other imports, and
    keeps what came of it in a file. Workers that import the same modules at the same moment would all do all of it, so
    each begins with modules of its own and finds those of the others done."""
    worker: dict[str, Any] = getattr(config, "workerinput", {})
    if not worker or runs_quick_tests_only(config):
        return
    modules = [path for path in sorted(config.rootpath.glob("tests/**/test_*.py")) if _is_asked_for(path, config)]
    own = int(worker["workerid"].removeprefix("gw"))
    for path in modules[own :: worker["workercount"]]:
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        # What is wrong with a module is told where it is collected.
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(path.stem)


def _is_asked_for(path: Path, config: pytest.Config) -> bool:
    """Whether ``path`` is below one of the command line's, or is one of them."""
    asked = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(path.is_relative_to(place.resolve()) for place in asked)


@pytest.fixture(scope="session")
def shared_valkey() -> Iterator[EmbeddedValkey]:
    """One server for the session. Ask for ``broker_url`` instead, unless you must not empty it."""
    with valkey_server(is_durable=False) as server:
        yield server


@pytest.fixture
def broker_url(shared_valkey: EmbeddedValkey) -> str:
    """``unix://`` URL of a real, empty broker, for a user with the rights of the product."""
    return emptied(shared_valkey)


@pytest.fixture
def breaking(shared_valkey: EmbeddedValkey, broker_url: str) -> Iterator[redis.Redis]:
    """A client of the server at ``broker_url`` that may do everything, as the product may not."""
    with administrator(shared_valkey) as client:
        yield client


@pytest.fixture
def own_valkey() -> Iterator[EmbeddedValkey]:
    """A broker that this test may ``kill``, ``stop`` and ``start``; it keeps its data as in production."""
    with valkey_server(is_durable=True) as server:
        yield server


@pytest.fixture(scope="session")
def shared_postgres_farm() -> Iterator[PostgresFarm]:
    with postgres_farm() as farm:
        yield farm


@pytest.fixture
def own_postgres(shared_postgres_farm: PostgresFarm) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server that this test may ``kill``, ``stop`` and ``start``. ``build_url()`` names its database."""
    with shared_postgres_farm.own_server() as server:
        yield server


@pytest.fixture
def postgres_url(shared_postgres_farm: PostgresFarm) -> Iterator[str]:
    """SQLAlchemy URL of a PostgreSQL database at the newest schema, without rows."""
    with shared_postgres_farm.migrated_database() as url:
        yield url


@pytest.fixture
def empty_postgres_url(shared_postgres_farm: PostgresFarm) -> Iterator[str]:
    """SQLAlchemy URL of a fresh PostgreSQL database without tables."""
    with shared_postgres_farm.database() as url:
        yield url


@pytest.fixture(scope="module", autouse=True)
def forget_providers() -> Iterator[None]:
    """The clients of a module's providers, and their idle connections, go with it. A process keeps 256 of them, which
    is more than the 1,024 open files of a common limit allow beside what tests open."""
    yield
    if (factory := sys.modules.get("hermes_worker.models.factory")) is not None:
        factory._build_shared.cache_clear()


@pytest.fixture(autouse=True)
def nobody_acts() -> Iterator[None]:
    """A command line that ran in this process leaves nobody behind whose deeds the next test would record."""
    with set_actor(None):
        yield


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLAlchemy URL of a database without rows: the test runs once on each kind. On PostgreSQL it has the newest
    schema, on SQLite ``bring_up`` or the product gives it one."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """SQLAlchemy URL of a fresh database without tables: the test runs once on each kind."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("empty_postgres_url"))
    return f"sqlite:///{tmp_path / 'test.db'}"
