"""What a search costs among many messages, how large its index is, and what indexing costs the commit of a step.

``python -m benchmarks.searching 1000000`` fills a PostgreSQL of its own with so many messages, ``--sqlite`` a file of
SQLite; the texts come from a fixed seed. It indexes them as workers do, and then prints the size of the index, times of
ten kinds of queries, and the CPU time of a step's claim and commit alone and beside a process that indexes, by turns
in so many ``--rounds`` (0 leaves that out). With ``--keep DIRECTORY`` the database stays there, and a later call
measures what an earlier one filled (``--fill``); ``--at-once`` loads the index with what the indexer would write there.
``--check`` fails where the 95th percentile of all searches is above 150 ms, or a commit costs over 2% more.
docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import Iterate
from hermes_worker.core.messages import ModelReply, Role, Usage, build_assistant_body, build_tool_body, build_user_body
from hermes_worker.core.spec import RunSpec
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.rows import store_blob
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.search.finding import MessageSearch, Search
from hermes_worker.store.search.index_queue import build_index_words, delete_from_index, mark_due
from hermes_worker.store.search.indexing import Indexer, count_indexed
from hermes_worker.store.tables import messages, search_rows, sessions
from hermes_worker.store.workers import Workers
from hermes_worker.system.plainfiles import read_note

_Picks = Sequence[tuple[int, int, int]]
"""Session, number of the message, and which of the texts it has."""
_SEED = 19
_OF_SESSION = 40
_SESSIONS_AT_ONCE = 50
_VOCABULARY = 30_000
_ROLES = (Role.USER, Role.ASSISTANT, Role.TOOL, Role.ASSISTANT)
_SEARCHES = 30
"""Of each kind."""
_P95_MAX_MS = 150.0
_COMMIT_MAX = 1.02
_TURN_S = 2.5
_INDEX_EVERY_S, _INDEX_S = 2.0, 0.5
"""The pace of a worker (``tasks.heartbeat``)."""


class _Words:
    """Texts of a seed: words as unequally frequent as those of a language, some Chinese, some names of code."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        letters = ["".join(pair) for pair in itertools.product("bdfgklmnprstvz", "aeiou")]
        made = {"".join(self.chance.choices(letters, k=self.chance.randint(1, 4))) for _ in range(_VOCABULARY * 2)}
        self.words = sorted(made)
        self.chance.shuffle(self.words)
        self.words = self.words[:_VOCABULARY]
        self._weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(len(self.words))))
        self._characters = [chr(0x4E00 + n) for n in range(600)]

    def some(self, count: int) -> list[str]:
        return self.chance.choices(self.words, cum_weights=self._weights, k=count)

    def rare(self) -> str:
        return self.words[self.chance.randrange(len(self.words) // 2, len(self.words))]

    def common(self) -> str:
        return self.words[self.chance.randrange(100)]

    def name(self) -> str:
        return f"{self.rare()}_{self.common()}.{self.common()}"

    def chinese(self, count: int) -> str:
        return "".join(self.chance.choices(self._characters, k=count))

    def text(self) -> str:
        parts = self.some(self.chance.randint(15, 60))
        if self.chance.random() < 0.1:
            parts.insert(3, self.chinese(12))
        if self.chance.random() < 0.2:
            parts.insert(5, self.name())
        return " ".join(parts)


def _body(role: Role, text: str) -> str:
    match role:
        case Role.USER:
            return build_user_body(text)
        case Role.TOOL:
            return build_tool_body("call_1", text)
        case _:
            return build_assistant_body(ModelReply(text=text, usage=Usage()))


def _fill(database: Database, count: int, words: _Words) -> None:
    made = 0
    while made < count:
        with database.write() as connection:
            tools = store_blob(connection, "[]")
            for _ in range(_SESSIONS_AT_ONCE):
                if made >= count:
                    break
                many = min(_OF_SESSION, count - made)
                its = {
                    "session_id": f"run_{made:032x}",
                    "tenant": "default",
                    "source": "api",
                    "name": f"s{made}",
                    "message_seq": many,
                    "system_prompt": "",
                    "tools_hash": tools,
                    "workspace": "{}",
                    "created_at": 1.7e9 + made,
                }
                pk = connection.execute(sa.insert(sessions).values(**its).returning(sessions.c.pk)).scalar_one()
                rows = [
                    {
                        "session_pk": pk,
                        "seq": seq,
                        "run_pk": 0,
                        "role": _ROLES[seq % 4].value,
                        "body": _body(_ROLES[seq % 4], words.text()),
                        "created_at": 1.7e9 + made + seq,
                    }
                    for seq in range(1, many + 1)
                ]
                connection.execute(sa.insert(messages), rows)
                mark_due(connection, pk)
                made += many


# --- a million at once -----------------------------------------------------------------------------------------------

_TEXTS = 60_000
_AT_ONCE = 20_000


def _load(database: Database, count: int, words: _Words, different: int) -> int:
    """Fill in messages and rows of the index without the indexer, for whoever has no hour; bytes without the index.
    So many texts are ``different``. The words of each are made once, by the function with which the indexer makes
    them."""
    texts = [words.text() for _ in range(different)]
    bodies = {role: [_body(role, text) for text in texts] for role in set(_ROLES)}
    found = {role: [build_index_words("default", role, body) for body in its] for role, its in bodies.items()}
    picks = [(n // _OF_SESSION + 1, n % _OF_SESSION + 1, (n * 7_919) % different) for n in range(count)]
    with database.write() as connection:
        connection.execute(sa.insert(sessions), list(_sessions(count, store_blob(connection, "[]"))))
        if not database.is_sqlite:
            last = "select setval(pg_get_serial_sequence('sessions', 'pk'), (select max(pk) from sessions))"
            connection.exec_driver_sql(last)
    with database.write() as connection:
        for first in range(0, count, _AT_ONCE):
            _load_messages(connection, first, picks[first : first + _AT_ONCE], bodies)
    size = _size(database)
    with database.write() as connection:
        for first in range(0, count, _AT_ONCE):
            _load_words(connection, first, picks[first : first + _AT_ONCE], found)
    return size


def _sessions(count: int, tools: str) -> Iterator[dict[str, Any]]:
    for number in range(0, count, _OF_SESSION):
        yield {
            "pk": number // _OF_SESSION + 1,
            "session_id": f"run_{number:032x}",
            "tenant": "default",
            "source": "api",
            "name": f"s{number}",
            "message_seq": min(_OF_SESSION, count - number),
            "system_prompt": "",
            "tools_hash": tools,
            "workspace": "{}",
            "created_at": 1.7e9 + number,
        }


def _load_messages(connection: Connection, first: int, picks: _Picks, bodies: Mapping[Role, Sequence[str]]) -> None:
    columns = "session_pk, seq, run_pk, role, body, created_at"
    rows = [
        (session, seq, 0, role.value, bodies[role][text], 1.7e9 + first + number)
        for number, (session, seq, text) in enumerate(picks)
        for role in (_ROLES[seq % 4],)
    ]
    _copy(connection, f"messages ({columns})", rows)


def _load_words(
    connection: Connection, first: int, picks: _Picks, found: Mapping[Role, Sequence[Sequence[str]]]
) -> None:
    said = [(session, seq, found[_ROLES[seq % 4]][text]) for session, seq, text in picks]
    if connection.dialect.name == "sqlite":
        pks = range(first + 1, first + 1 + len(said))
        rows = [(pk, session, seq) for pk, (session, seq, _) in zip(pks, said, strict=True)]
        _copy(connection, "search_rows (pk, session_pk, seq)", rows)
        texts = [(pk, " ".join(its)) for pk, (_, _, its) in zip(pks, said, strict=True)]
        _copy(connection, "search_words (rowid, words)", texts)
        return
    if not first:
        connection.exec_driver_sql("drop index ix_search_rows_words")
    quoted = [(session, seq, " ".join(f"'{word}'" for word in its)) for session, seq, its in said]
    _copy(connection, "search_rows (session_pk, seq, words)", quoted)


def _copy(connection: Connection, into: str, rows: Sequence[tuple[Any, ...]]) -> None:
    if connection.dialect.name == "sqlite":
        marks = ", ".join("?" * len(rows[0]))
        connection.exec_driver_sql(f"insert into {into} values ({marks})", rows)
        return
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor, cursor.copy(f"copy {into} from stdin") as copy:
        for row in rows:
            copy.write_row(row)


def _check_load(database: Database, count: int) -> None:
    """Have the indexer index some sessions anew, and compare. Raises ``AssertionError``."""
    some = range(1, count // _OF_SESSION + 1)[:: max(1, count // _OF_SESSION // 50)]
    with database.write() as connection:
        before = _indexed(connection, some)
        for session_pk in some:
            delete_from_index(connection, session_pk)
            mark_due(connection, session_pk)
    while Indexer(database).index_batch() is not None:
        pass
    with database.read() as connection:
        assert before == _indexed(connection, some)
    print(f"of {len(some)} sessions the indexer made the same rows", flush=True)


def _indexed(connection: Connection, session_pks: Sequence[int]) -> list[Any]:
    """Rows and words of these sessions; of SQLite, which keeps no words of a row, how many rows have each word."""
    columns = [search_rows.c.session_pk, search_rows.c.seq, sa.cast(search_rows.c.words, sa.Text)]
    its = sa.select(*columns).where(search_rows.c.session_pk.in_(session_pks))
    rows: list[Any] = list(connection.execute(its.order_by(search_rows.c.session_pk, search_rows.c.seq)))
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(
            "create virtual table if not exists temp.vocabulary using fts5vocab(main, search_words, row)"
        )
        rows += connection.exec_driver_sql("select term, doc from temp.vocabulary")
    return rows


def _size(database: Database) -> int:
    """Bytes of the whole database."""
    with database.read() as connection:
        if database.is_sqlite:
            pages = connection.exec_driver_sql("pragma page_count").scalar_one()
            return int(pages) * int(connection.exec_driver_sql("pragma page_size").scalar_one())
        return int(connection.exec_driver_sql("select pg_database_size(current_database())").scalar_one())


def _index(database: Database) -> tuple[int, float]:
    """How many messages were indexed, and the CPU time of this process that it took, in seconds."""
    indexer, added, began = Indexer(database), 0, time.process_time()
    while (batch := indexer.index_batch()) is not None:
        added += batch
    return added, time.process_time() - began


def _queries(words: _Words) -> dict[str, Callable[[], str]]:
    return {
        "a common word": words.common,
        "a rare word": words.rare,
        "two common words": lambda: f"{words.common()} {words.common()}",
        "a common and a rare one": lambda: f"{words.common()} {words.rare()}",
        "one OR the other": lambda: f"{words.rare()} OR {words.common()}",
        "one NOT the other": lambda: f"{words.rare()} NOT {words.common()}",
        "a phrase": lambda: '"' + " ".join(words.some(2)) + '"',
        "a beginning": lambda: f"{words.rare()[:4]}*",
        "two Chinese characters": lambda: words.chinese(2),
        "a name of code": words.name,
    }


class _Took(NamedTuple):
    """Milliseconds of one search: by the clock, and the CPU of this process and of those of PostgreSQL that serve it,
    which take turns."""

    clock: float
    cpu: float


def _search(database: Database, words: _Words, best_of: int) -> list[_Took]:
    """Each search, told by kind."""
    search, every = Search(database), []
    search.find(MessageSearch(text="warm"))
    for kind, make in _queries(words).items():
        took, found = [], 0
        for _ in range(_SEARCHES):
            wanted = MessageSearch(text=make())
            tries = [_one_search(search, wanted, _servers(database)) for _ in range(best_of)]
            took.append(min(tries)[0])
            found += tries[0][1]
        every += took
        print(f"  {kind:<26}{_told(took)}   {found / _SEARCHES:5.1f} found", flush=True)
    return every


def _one_search(search: Search, wanted: MessageSearch, servers: Sequence[Path]) -> tuple[_Took, int]:
    before, began = _cpu_s(servers), time.perf_counter()
    found = len(search.find(wanted).found)
    clock = time.perf_counter() - began
    return _Took(1_000 * clock, 1_000 * (_cpu_s(servers) - before)), found


def _told(took: Sequence[_Took]) -> str:
    figures = []
    for values in ([each.clock for each in took], [each.cpu for each in took]):
        figures += [statistics.median(values), _percentile(values, 0.95), max(values)]
    return "".join(f"{figure:9.1f}" for figure in figures)


def _percentile(values: Sequence[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(part * len(values)))]


# --- what a step pays ------------------------------------------------------------------------------------------------


def _index_beside(url: str, may: Event) -> None:
    """A process that indexes as a worker does while it may, until it is ended."""
    database = Database(url)
    while True:
        if may.wait(_INDEX_EVERY_S):
            Indexer(database).index_due(_INDEX_S, is_over=lambda: not may.is_set())
            time.sleep(_INDEX_EVERY_S)


@contextmanager
def _indexing(url: str) -> Iterator[Event]:
    spawn = multiprocessing.get_context("spawn")
    may = spawn.Event()
    process = spawn.Process(target=_index_beside, args=(url, may), daemon=True)
    process.start()
    try:
        yield may
    finally:
        process.kill()
        process.join()


def _steps(database: Database, owner: int, words: _Words, seconds: float, servers: Sequence[Path]) -> _Took:
    """What the claim and the commit of a step take: in the median by the clock, and on the average of CPU."""
    runs = Runs(database)
    took: list[_Took] = []
    ends_at = time.monotonic() + seconds
    while not took or time.monotonic() < ends_at:
        new = NewRun(spec=RunSpec(input=words.text(), model="m"), system_prompt="", tools="[]", workspace="{}")
        run_id = runs.create(new).run_id
        reply = ModelReply(text=words.text(), usage=Usage())
        before, began = _cpu_s(servers), time.perf_counter()
        claim = runs.claim_iteration(Iterate(run_id=run_id, iteration=1, attempt=1), owner)
        assert claim is not None
        runs.commit_reply(claim, reply, ())
        clock = time.perf_counter() - began
        took.append(_Took(1_000 * clock, 1_000 * (_cpu_s(servers) - before)))
        with database.write() as connection:  # as the sweep does that counts the run
            its = sa.select(sessions.c.pk).where(sessions.c.session_id == run_id)
            mark_due(connection, connection.execute(its).scalar_one())
    clocks, cpu = zip(*took, strict=True)
    return _Took(statistics.median(clocks), statistics.fmean(cpu))


def _servers(database: Database) -> list[Path]:
    """Where Linux counts the time of each of PostgreSQL's processes that serve this one; SQLite has none."""
    if database.is_sqlite:
        return []
    mine = "select pid from pg_stat_activity where backend_type = 'client backend' and datname = current_database()"
    with database.read() as connection:
        return [Path(f"/proc/{pid}/schedstat") for pid in connection.exec_driver_sql(mine).scalars()]


def _cpu_s(servers: Sequence[Path]) -> float:
    """Of this process and of these, in seconds."""
    return time.process_time() + sum(int(read_note(path).split()[0]) for path in servers) / 1e9


def _compare_commits(database: Database, url: str, words: _Words, wanted: argparse.Namespace) -> float:
    """What a commit beside an indexer costs of CPU, as a part of one alone: the middle of several rounds, each of which
    has a turn alone before it and one behind it. How much those two differ says what such a figure is worth."""
    owner = Workers(database).register(name="w", queues="model", ttl_s=1e9).pk
    shares, noise = [], []
    _steps(database, owner, words, wanted.turn, ())
    servers = _servers(database)  # and none of the indexer's
    with _indexing(url) as may:
        for _ in range(wanted.rounds):
            before = _steps(database, owner, words, wanted.turn, servers)
            may.set()
            beside = _steps(database, owner, words, wanted.turn, servers)
            may.clear()
            behind = _steps(database, owner, words, wanted.turn, servers)
            shares.append(2 * beside.cpu / (before.cpu + behind.cpu))
            noise.append(abs(behind.cpu / before.cpu - 1))
            told = ", ".join(f"{each.cpu:.2f} ({each.clock:.2f})" for each in (before, beside, behind))
            print(f"  CPU of a step (clock) alone, beside an indexer, alone: {told} ms", flush=True)
    rows = count_indexed(database)["indexed"]
    print(f"two turns alone differ by {statistics.median(noise):.1%}; {rows:,} are indexed by now", flush=True)
    return statistics.median(shares)


def _fill_and_index(database: Database, count: int, *, texts: int | None) -> None:
    """Tell how long it took and how large the index is. With ``texts``, which are as many, all is loaded at once."""
    print(f"load average {os.getloadavg()[0]:.1f}; filling in {count:,} messages", flush=True)
    if texts:
        added, cpu_s, before = count, 0.0, _load(database, count, _Words(_SEED), texts)
        if not database.is_sqlite:
            with database.write() as connection:
                connection.exec_driver_sql("create index ix_search_rows_words on search_rows using gin (words)")
    else:
        _fill(database, count, _Words(_SEED))
        before = _size(database)
        added, cpu_s = _index(database)
    size = _size(database) - before
    print(
        f"{added:,} messages indexed, {1_000 * cpu_s / added:.2f} ms of CPU each beside the database's own; the index "
        f"has {size / 1e6:,.0f} MB, {size / added:,.0f} bytes a message, {size / before:.0%} of what was there",
        flush=True,
    )
    if not database.is_sqlite:  # as autovacuum does, which is off here
        with database.statement() as connection:
            connection.exec_driver_sql("vacuum analyze")
    if texts:
        _check_load(database, count)


def _filled(url: str, count: int, *, texts: int | None) -> Database:
    """A database with so many messages, all of them indexed."""
    database = Database(url)
    migrate(database)
    if not count_indexed(database)["indexed"]:
        _fill_and_index(database, count, texts=texts)
    its = count_indexed(database)
    print(f"{its['indexed']:,} messages are indexed, {its['due']:,} sessions are due", flush=True)
    return database


def _measure(database: Database, url: str, wanted: argparse.Namespace) -> list[str]:
    """What is not as it should be."""
    words = _Words(_SEED)
    wrong = [] if wanted.commits else _measure_searches(database, words, wanted.best_of)
    if wanted.rounds:
        share = _compare_commits(database, url, words, wanted)
        told = f"a step costs {share - 1:+.1%} of CPU beside an indexer"
        print(f"{told}; load average {os.getloadavg()[0]:.1f}", flush=True)
        wrong += [told] if share > _COMMIT_MAX else []
    return wrong


def _measure_searches(database: Database, words: _Words, best_of: int) -> list[str]:
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"  {load:<26}{'by the clock, ms':>27}{'of CPU, ms':>27}", flush=True)
    print(f"  {'':<26}{2 * ''.join(f'{name:>9}' for name in ('p50', 'p95', 'worst'))}", flush=True)
    every = _search(database, words, best_of)
    print(f"  {'all':<26}{_told(every)}", flush=True)
    high, cpu = (_percentile(its, 0.95) for its in zip(*every, strict=True))
    told = f"the 95th percentile of all searches is {high:.0f} ms, {cpu:.0f} of them CPU"
    return [told] if high > _P95_MAX_MS else []


@contextmanager
def _database(place: str, is_sqlite: bool) -> Iterator[str]:
    """The URL of the database of this directory."""
    Path(place).mkdir(parents=True, exist_ok=True)
    if is_sqlite:
        yield f"sqlite:///{place}/searching.db"
        return
    filled = Path(place) / "searching"  # says that the database was made
    with EmbeddedPostgres(Path(place), is_durable=False) as server:
        yield server.build_url("searching") if filled.exists() else server.create_database("searching")
        filled.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("messages", type=int)
    parser.add_argument("--sqlite", action="store_true", help="Into a file of SQLite.")
    parser.add_argument("--keep", metavar="DIRECTORY", help="Where the database is kept for the next call.")
    parser.add_argument("--at-once", action="store_true", help="Load the index and do not have it made by the indexer.")
    parser.add_argument("--texts", type=int, default=_TEXTS, help="So many different ones, where it is at once.")
    parser.add_argument("--fill", action="store_true", help="Fill only, and measure nothing.")
    parser.add_argument("--best-of", type=int, default=1, help="Ask each so often and take the time of the shortest.")
    parser.add_argument("--commits", action="store_true", help="Compare commits only.")
    parser.add_argument("--turn", type=float, default=_TURN_S, help="Seconds of a turn, longer than an indexer pauses.")
    parser.add_argument("--rounds", type=int, default=10, help="In which commits are compared; 0 for none.")
    parser.add_argument("--check", action="store_true", help="Fail where it takes longer than promised.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing, _database(arguments.keep or passing, arguments.sqlite) as url:
        database = _filled(url, arguments.messages, texts=arguments.texts if arguments.at_once else None)
        wrong = [] if arguments.fill else _measure(database, url, arguments)
        database.close()
    print(*wrong, sep="\n")
    if arguments.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
