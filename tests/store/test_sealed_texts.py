"""Texts that are encrypted at rest: nothing of them is in the clear, everything goes on, and keys may change."""

from __future__ import annotations

import re
import threading
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.store import Store, asks

import hermes_worker
from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store import text_keys as module
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import (
    CLEAR,
    MARK,
    NO_KEYS,
    KeyMissing,
    KeySource,
    SealedText,
    Sealer,
    TextTampered,
    build_text_keys,
    coalesce_texts,
    derive_key_id,
)
from hermes_worker.store.engine.stored_texts import PlacedText
from hermes_worker.store.runs.families import Families
from hermes_worker.store.tables import blobs, events, messages, tool_calls
from hermes_worker.store.text_keys import (
    UNUSED_S,
    check_keys,
    count_left,
    list_key_uses,
    list_sealed_columns,
    load_needed_keys,
    reencrypt_texts,
    retire_keys,
)
from hermes_worker.store.whole_schema import load_schema

OLD, NEW = "hwt_" + "o" * 40, "hwt_" + "n" * 40
CANARY = "tell-nobody-7f3a"


# --- one value -------------------------------------------------------------------------------------------------------


@given(st.text(), st.sampled_from([(), (OLD,), (NEW, OLD), (CLEAR, OLD)]))
def test_every_text_comes_back_as_it_was(text: str, keys: Sequence[str]) -> None:
    sealer = Sealer(build_text_keys(keys))
    for said in (text, f"{MARK}{text}", f"{MARK}=:{text}"):
        assert sealer.open(sealer.seal(said, "messages.body"), ["messages.body"]) == said


def test_the_same_text_is_stored_differently_each_time() -> None:
    sealer = Sealer(build_text_keys([OLD]))
    assert len({sealer.seal(CANARY, "messages.body") for _ in range(100)}) == 100


@pytest.mark.parametrize("cut", [slice(0, -1), slice(0, 20), slice(0, 14)])
def test_a_text_that_was_cut_off_does_not_open(cut: slice) -> None:
    sealer = Sealer(build_text_keys([OLD]))
    with pytest.raises(TextTampered, match=f"messages.body .*{derive_key_id(OLD)}"):
        sealer.open(sealer.seal(CANARY, "messages.body")[cut], ["messages.body"])


def test_a_text_that_was_changed_does_not_open() -> None:
    sealer = Sealer(build_text_keys([OLD]))
    sealed = sealer.seal(CANARY, "messages.body")
    for place in range(len(MARK) + 9, len(sealed)):
        # The last sign stands for fewer bits than the others: only its first ones count.
        other = "g" if sealed[place] in "ABCDEFGHIJKLMNOP" else "A"
        with pytest.raises(TextTampered):
            sealer.open(f"{sealed[:place]}{other}{sealed[place + 1 :]}", ["messages.body"])


def test_a_text_of_another_column_does_not_open() -> None:
    sealer = Sealer(build_text_keys([OLD]))
    with pytest.raises(TextTampered):
        sealer.open(sealer.seal(CANARY, "messages.body"), ["events.data"])


def test_an_unknown_key_is_named_and_nothing_else() -> None:
    sealed = Sealer(build_text_keys([OLD])).seal(CANARY, "messages.body")
    with pytest.raises(KeyMissing) as raised:
        Sealer(build_text_keys([NEW])).open(sealed, ["messages.body"])
    said = str(raised.value)
    assert derive_key_id(OLD) in said and "HERMES_ENCRYPTION_KEYS" in said
    assert OLD not in said and NEW not in said and CANARY not in said


# --- every column ----------------------------------------------------------------------------------------------------


def test_every_text_that_is_stored_in_clear_was_reviewed() -> None:
    reviewed = tomllib.loads((Path(__file__).parents[1] / "clear_columns.toml").read_text(encoding="utf-8"))
    found = {
        (table.name, column.name)
        for table in load_schema().tables.values()
        for column in table.columns
        if isinstance(column.type, sa.String | PlacedText) and not isinstance(column.type, SealedText)
    }
    assert {(table, column) for table, columns in reviewed.items() for column in columns} == found, (
        "if people, models, tools or providers may have written what is in the new column, its type is "
        "SealedText('table.column'); if SQL must see it, name it in tests/clear_columns.toml."
    )


def test_a_column_is_encrypted_for_itself() -> None:
    for table, columns in list_sealed_columns().items():
        for column in columns:
            assert isinstance(column.type, SealedText) and column.type.places == (f"{table.name}.{column.name}",)


@pytest.mark.parametrize(
    "look",
    [
        lambda: messages.c.body == "x",
        lambda: messages.c.body != "x",
        lambda: messages.c.body.like("%x%"),
        lambda: messages.c.body.in_(["x"]),
        lambda: messages.c.body + "x",
        lambda: "x" + messages.c.body,
        lambda: sa.select(messages.c.body).order_by(messages.c.body.desc()),
    ],
)
def test_no_statement_looks_into_such_a_column(look: object) -> None:
    with pytest.raises(TypeError, match=r"cannot look into messages\.body"):
        look()  # type: ignore[operator]


def test_no_statement_of_the_product_hands_such_a_column_to_a_function() -> None:
    """An operator is refused by the type; a function is not, and would see encrypted text."""
    names = {f"{table.name}.c.{column.name}" for table, columns in list_sealed_columns().items() for column in columns}
    used = re.compile(rf"func\.\w+\([^()]*\b({'|'.join(map(re.escape, sorted(names)))})\b")
    root = Path(hermes_worker.__file__).parent
    found = {
        (path.name, match[1])
        for path in root.rglob("*.py")
        for match in used.finditer(path.read_text(encoding="utf-8"))
    }
    # Both of the same column: what is written anew, or what is there.
    assert found <= {("slots.py", "jobs.c.definition")}, (
        "use store.engine.sealing.coalesce_texts, or compare where it is read"
    )


# --- a whole database ------------------------------------------------------------------------------------------------


@contextmanager
def over(store: Store, *keys: str, source: KeySource | None = None) -> Iterator[Store]:
    """A process of its own on the same database, with these keys."""
    sealer = Sealer(build_text_keys(keys) if keys else NO_KEYS, source)
    database = Database(store.database.url.render_as_string(hide_password=False), sealer=sealer)
    try:
        check_keys(database)
        yield Store.over(database)
    finally:
        database.close()


def play(store: Store, name: str = CANARY) -> str:
    """Runs that write a text of ``name`` into many columns; the id of the one that ended."""
    run_id = store.submit(
        input=f"{name} asks",
        system_prompt=f"You know {name}.",
        idempotency_key=f"of {name[-4:]}",
        fingerprint=f"{name}-print",
    ).run_id
    store.ask_tools(run_id, asks(Replay.PURE, Replay.ONCE))
    store.settle(run_id, 0, text=f"{name} said a tool", cwd=f'"/{name}"')
    store.settle(run_id, 1, text=f"{name} " * 4_000)  # a blob
    store.answer(run_id)
    parent = store.with_tools(Replay.PURE, input=f"{name} delegates")
    store.delegate(parent, 2)
    store.sweep()
    return run_id


def everything(store: Store) -> str:
    """Every row of every table as the database stores it, and of SQLite both files."""
    with Database(store.database.url.render_as_string(hide_password=False)).engine.connect() as connection:
        found = [
            str(tuple(row))
            for table in load_schema().sorted_tables
            for row in connection.exec_driver_sql(f'select * from "{table.name}"')
        ]
    if store.database.is_sqlite:
        file = Path(str(store.database.url.database))
        found += [path.read_bytes().decode("latin-1") for path in file.parent.glob(f"{file.name}*")]
    return "\n".join(found)


def test_nothing_of_a_run_is_in_clear(store: Store) -> None:
    with over(store, OLD) as sealed:
        run_id = play(sealed)
        assert sealed.status(run_id) is RunStatus.COMPLETED
        transcript = sealed.bodies(run_id)
        stored = everything(store)

        assert CANARY in str(transcript) and len(transcript) == 5
        assert stored.count(f"{MARK}{derive_key_id(OLD)}:") > 20
        assert CANARY not in stored and OLD not in stored


def test_the_same_is_found_where_nothing_is_encrypted(store: Store) -> None:
    """So the test above can fail."""
    play(store)
    assert everything(store).count(CANARY) > 10 and MARK not in everything(store)


def test_a_repeated_request_is_known_by_its_encrypted_fingerprint(store: Store) -> None:
    with over(store, OLD) as sealed:
        first = sealed.submit(idempotency_key="k", fingerprint="f")
        again = sealed.submit(idempotency_key="k", fingerprint="f")
        assert again.was_replayed and again.run_id == first.run_id


def test_clear_texts_and_those_of_two_keys_stand_side_by_side(store: Store) -> None:
    session = store.submit(input="in clear")
    with over(store, OLD) as old:
        old.answer(session.run_id)
        second = old.submit(input="by the old key", session_id=session.session_id).run_id
        old.answer(second)
    with over(store, NEW, OLD) as new:
        third = new.submit(input="by the new key", session_id=session.session_id).run_id
        new.answer(third)
        said = [body["content"] for body in new.bodies(third)]
    assert said == ["in clear", "done", "by the old key", "done", "by the new key", "done"]


def test_refused_calls_are_found_among_encrypted_events(store: Store) -> None:
    with over(store, OLD) as sealed:
        parent = sealed.with_tools(Replay.PURE)
        [child] = sealed.delegate(parent, 1)
        with sealed.database.write() as connection:
            pk = connection.execute(sa.text("select pk from runs where run_id = :r"), {"r": child}).scalar_one()
            refused = '{"tool":"terminal","refused_by":"guard","reason":"no"}'
            rows = [
                {"run_pk": pk, "seq": 100 + n, "at": float(n), "event": "tool.completed", "data": data}
                for n, data in enumerate(['{"tool":"x"}'] * 250 + [refused])
            ]
            connection.execute(sa.insert(events), rows)
        found = Families(sealed.database).list_refusals(parent)
        assert [(each.tool, each.refused_by) for each in found] == [("terminal", "guard")]


def test_either_of_two_columns_opens_and_no_third(store: Store) -> None:
    with over(store, OLD) as sealed, sealed.database.write() as connection:
        connection.execute(sa.insert(blobs).values(hash="h", body=CANARY))
        of_blobs = sa.select(coalesce_texts(messages.c.body, blobs.c.body)).select_from(
            blobs.outerjoin(messages, messages.c.blob_hash == blobs.c.hash)
        )
        assert connection.execute(of_blobs).scalar_one() == CANARY
        of_events = sa.select(sa.type_coerce(blobs.c.body, events.c.data.type))
        with pytest.raises(TextTampered):
            connection.execute(of_events).scalar_one()


def test_the_text_of_an_error_shows_no_values(store: Store) -> None:
    with over(store, OLD) as sealed:
        twice = sa.insert(blobs).values(hash=CANARY, body=CANARY)
        with sealed.database.write() as connection:
            connection.execute(twice)
        with pytest.raises(sa.exc.IntegrityError) as raised, sealed.database.write() as connection:
            connection.execute(twice)
        assert f"'{CANARY}'" not in str(raised.value).replace("Key (hash)", "")


# --- keys that are missing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [(), (NEW,), (CLEAR,)])
def test_a_process_without_a_key_that_is_needed_does_not_start(store: Store, keys: Sequence[str]) -> None:
    with over(store, OLD) as sealed:
        play(sealed)
    with pytest.raises(ConfigurationError, match=rf"the key {derive_key_id(OLD)}, not given here"), over(store, *keys):
        pass


def test_a_run_whose_key_is_missing_waits_and_holds_up_no_other(store: Store) -> None:
    with over(store, OLD) as other:
        theirs = other.with_tools(Replay.PURE)
        lost = other.worker()
        other.call(theirs, owner=lost.pk)
    with store.database.write() as connection:
        connection.execute(
            sa.text("update runs set memory = (select body from messages where body like 'hws1:%' limit 1)")
        )
        connection.execute(sa.text("delete from text_keys"))  # so that it does start
    with over(store, NEW) as here:
        ours = here.with_tools(Replay.PURE)
        mine = here.worker()
        here.call(ours, owner=mine.pk)
        for worker in (lost, mine):
            here.vanish(worker)
        here.sweep()
        with here.database.read() as connection:
            statuses = dict(connection.execute(sa.text("select run_id, status from runs")).all())
            calls = connection.execute(
                sa.select(tool_calls.c.status, tool_calls.c.attempt).order_by(tool_calls.c.run_pk)
            )
            assert statuses == {theirs: "waiting_for_tools", ours: "waiting_for_tools"} or len(statuses) == 2
            assert [tuple(call) for call in calls] == [("running", 1), ("pending", 2)]
    with pytest.raises(UnavailableError), over(store, NEW) as here:
        here.bodies(theirs)


def test_a_run_whose_text_was_changed_ends_visibly(store: Store) -> None:
    with over(store, OLD) as sealed:
        run_id = sealed.with_tools(Replay.PURE)
        lost = sealed.worker()
        sealed.call(run_id, owner=lost.pk)
        with sealed.database.write() as connection:
            connection.execute(sa.text(f"update runs set memory = '{MARK}{derive_key_id(OLD)}:AAAA'"))
        sealed.vanish(lost)
        sealed.sweep()
        assert sealed.status(run_id) is RunStatus.FAILED


# --- keys that change ------------------------------------------------------------------------------------------------


class Drawer:
    """A source of keys that a test changes."""

    def __init__(self, *keys: str) -> None:
        self.keys: Sequence[str] = keys
        self._told: Sequence[str] = keys

    def read_if_changed(self, *, at_once: bool) -> Sequence[str] | None:
        if not self.keys:
            raise ConfigurationError("the drawer is empty")
        if self.keys == self._told:
            return None
        self._told = self.keys
        return self.keys


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are looked at before every transaction, and are unused as soon as nobody says otherwise."""
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    monkeypatch.setattr(module, "UNUSED_S", -1.0)


def bring_all(store: Store) -> int:
    """Reseal everything; how many rows were changed."""
    changed = sum(batch.changed for batch in reencrypt_texts(store.database))
    assert set(count_left(store.database, store.database.sealer.keys.first).values()) == {0}
    return changed


def test_everything_is_encrypted_later_and_decrypted_again(store: Store, at_once: None) -> None:
    play(store)
    clear = everything(store).count(CANARY)
    with over(store, OLD) as sealed:
        assert sum(count_left(sealed.database, derive_key_id(OLD)).values()) > 10
        assert bring_all(sealed) > 10 and bring_all(sealed) == 0
        module.rewrite_file(sealed.database)
        assert clear > 5 and CANARY not in everything(store)
    with over(store, CLEAR, OLD) as back:
        play(back, f"{CANARY}-again")
        assert bring_all(back) > 10
        module.rewrite_file(back.database)
        assert retire_keys(back.database) == {derive_key_id(OLD)} and load_needed_keys(back.database) == set()
    with over(store) as off:
        assert MARK not in everything(off)
        play(off, "third")


def test_another_key_is_followed_between_two_transactions(store: Store, at_once: None) -> None:
    drawer = Drawer(OLD)
    with over(store, OLD, source=drawer) as sealed:
        first = play(sealed)
        drawer.keys = (NEW, OLD)
        second = play(sealed, "other")
        assert load_needed_keys(sealed.database) == {derive_key_id(OLD), derive_key_id(NEW)}
        assert f"{MARK}{derive_key_id(NEW)}:" in everything(store)
        assert len(sealed.bodies(first)) == len(sealed.bodies(second)) == 5


def test_a_key_that_another_process_uses_already_is_found_when_a_text_needs_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawer = Drawer(OLD)
    with over(store, OLD, source=drawer) as slow, over(store, OLD, NEW) as quick:
        quick.submit()
        drawer.keys = (NEW, OLD)
        quick.database.sealer.use_keys(build_text_keys([NEW, OLD]))
        run_id = quick.submit(input="by the new key").run_id
        quick.answer(run_id)
        assert [body["content"] for body in slow.bodies(run_id)] == ["by the new key", "done"]
        assert slow.database.sealer.keys.first == derive_key_id(OLD)
        monkeypatch.setattr(module, "LOOK_S", 0.0)
        for _ in range(2):  # the first was begun by the time that there was
            slow.submit()
            slow.database.before_writing._look_at = 0.0  # type: ignore[union-attr]
        assert slow.database.sealer.keys.first == derive_key_id(NEW)


def test_a_key_that_is_taken_away_too_early_is_kept(store: Store, at_once: None) -> None:
    drawer = Drawer(OLD)
    with over(store, OLD, source=drawer) as sealed:
        first = play(sealed)
        drawer.keys = (NEW,)
        sealed.answer(sealed.submit().run_id)
        assert sealed.database.sealer.keys.ids == {derive_key_id(OLD), derive_key_id(NEW)}
        assert len(sealed.bodies(first)) == 5
    with pytest.raises(ConfigurationError, match=derive_key_id(OLD)), over(store, NEW):
        pass


def test_keys_that_cannot_be_read_any_more_go_on_being_used(store: Store, at_once: None) -> None:
    drawer = Drawer(OLD)
    with over(store, OLD, source=drawer) as sealed:
        play(sealed)
        drawer.keys = ()
        play(sealed, "other")
        assert CANARY not in everything(store)


def test_a_key_that_somebody_used_a_moment_ago_is_not_forgotten(store: Store) -> None:
    with over(store, OLD) as sealed:
        play(sealed)
    with over(store, NEW, OLD) as sealed:
        bring_all(sealed)
        assert retire_keys(sealed.database) == set() and UNUSED_S > 60
        assert {use.key_id for use in list_key_uses(sealed.database)} == {derive_key_id(OLD), derive_key_id(NEW)}
        with sealed.database.write() as connection:
            connection.execute(sa.text("update text_keys set last_used_at = last_used_at - 1000"))
        assert retire_keys(sealed.database) == {derive_key_id(OLD)}


def test_a_key_with_a_row_left_is_not_forgotten(store: Store, at_once: None) -> None:
    with over(store, OLD) as sealed:
        play(sealed)
    with over(store, NEW, OLD) as sealed:
        assert retire_keys(sealed.database) == set()


def test_a_text_that_was_changed_is_named_and_left_alone(store: Store, at_once: None) -> None:
    with over(store, OLD) as sealed:
        play(sealed)
        with sealed.database.write() as connection:
            connection.execute(
                sa.text(f"update sessions set system_prompt = '{MARK}{derive_key_id(OLD)}:AAAA' where pk = 1")
            )
    with over(store, NEW, OLD) as sealed:
        told = [sentence for batch in reencrypt_texts(sealed.database) for sentence in batch.tampered]
        assert [re.match(r"\w+ \d+", sentence)[0] for sentence in told] == ["sessions 1"]  # type: ignore[index]
        rest = count_left(sealed.database, derive_key_id(NEW))
        assert sum(rest.values()) == rest["sessions"] == 1
        assert retire_keys(sealed.database) == set()


def test_a_row_that_somebody_holds_is_waited_for_by_nobody(postgres_store: Store) -> None:
    with over(postgres_store, OLD) as sealed:
        play(sealed)
    with over(postgres_store, NEW, OLD) as sealed:
        with sealed.database.write() as connection:
            connection.execute(sa.text("select 1 from run_inputs order by run_pk limit 1 for update"))
            list(reencrypt_texts(sealed.database))
            rest = count_left(sealed.database, derive_key_id(NEW))
            assert {table: count for table, count in rest.items() if count} == {"run_inputs": 1}
        assert bring_all(sealed) == 1


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_runs_go_on_while_their_texts_are_encrypted_anew(store: Store, times: int) -> None:
    """With as many threads that work as there are connections to work with."""
    failed: list[BaseException] = []
    with over(store, NEW, OLD) as sealed:
        stop = threading.Event()

        def work(name: str) -> None:
            try:
                while not stop.is_set():
                    run_id = sealed.with_tools(Replay.PURE, input=name)
                    sealed.settle(run_id, text=name * 50)
                    sealed.answer(run_id)
            except BaseException as error:
                failed.append(error)

        assert sealed.owner
        threads = [threading.Thread(target=work, args=(f"{CANARY}{n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        changed = 0
        for keys in ([OLD, NEW], [NEW, OLD]) * times:
            sealed.database.sealer.use_keys(build_text_keys(keys))
            changed += sum(batch.changed for batch in reencrypt_texts(sealed.database))
        stop.set()
        for thread in threads:
            thread.join()
        assert failed == [] and changed > 20
        assert CANARY not in everything(store)
