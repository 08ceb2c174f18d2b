"""Keys of encrypted texts change while real workers are at work and are killed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.run import RunStatus
from hermes_worker.local.valkey import EmbeddedValkey
from hermes_worker.store.engine.sealing import MARK, derive_key_id
from hermes_worker.store.text_keys import count_left, load_needed_keys, reencrypt_texts, retire_keys
from hermes_worker.store.whole_schema import load_schema

pytestmark = pytest.mark.faults

SEED = 14
KEYS = [f"hwt_{letter * 40}" for letter in "abcd"]
CANARY = "tell-nobody-5c1d"


def put(file: Path, *keys: str) -> None:
    fresh = file.with_suffix(".new")
    fresh.write_text("\n".join(keys))
    fresh.replace(file)


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    put(tmp_path / "text-keys", KEYS[0])
    return tmp_path / "text-keys"


@pytest.fixture
def sealed_rig(tmp_path: Path, keys_file: Path, database_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    environ = {"HERMES_ENCRYPTION_KEYS_FILE": str(keys_file)}
    with rig_on(
        tmp_path, database_url=database_url, broker_url=own_valkey.url, work_s=0.05, more_environ=environ
    ) as rig:
        yield rig


def stored(rig: Rig) -> str:
    """Everything in the database as it is stored, and of SQLite its files."""
    with rig.client.database.engine.connect() as connection:
        rows = [
            str(tuple(row))
            for table in load_schema().sorted_tables
            for row in connection.exec_driver_sql(f'select * from "{table.name}"')
        ]
    if rig.client.database.is_sqlite:
        file = Path(str(rig.client.database.url.database))
        rows += [path.read_bytes().decode("latin-1") for path in file.parent.glob(f"{file.name}*")]
    return "\n".join(rows)


def begin_runs(rig: Rig, count: int) -> list[str]:
    begun = len(rig.submitted)
    marks = [[f"{CANARY}-{begun + n}-{step}" for step in range(4)] for n in range(count)]
    return [
        rig.submit(
            [{"calls": [sink_call(("pure", "keyed")[step % 2], mark)]} for step, mark in enumerate(of_run)],
            final=f"{CANARY} is the answer",
        )
        for of_run in marks
    ]


@pytest.mark.nightly
def test_keys_change_under_work_and_kills_and_nothing_is_lost_or_shown(sealed_rig: Rig, keys_file: Path) -> None:
    rig, chance = sealed_rig, random.Random(SEED)
    runs = []
    for number, new in enumerate(KEYS[1:], start=1):
        runs += begin_runs(rig, 4)
        put(keys_file, new, *KEYS[:number])  # one that a worker needs to start must not go yet
        worker = chance.choice(rig.fleet.workers)
        rig.fleet.kill(worker)
        rig.fleet.replace(worker)
        until(lambda new=new: new_key_is_used(rig, new), "the new key to be used")
        list(reencrypt_texts(rig.client.database))
        assert CANARY not in stored(rig)

    ended = rig.ended()
    assert {view.status for view in ended} == {RunStatus.COMPLETED}, rig.log_text()[-3000:]
    assert rig.broken_invariants() == []
    for run_id in runs:
        rows = rig.tool_rows(run_id)
        assert len(rows) == 4 and all(CANARY in row["content"] for row in rows)

    last = derive_key_id(KEYS[-1])
    until(
        lambda: sum(batch.changed for batch in reencrypt_texts(rig.client.database)) == 0 or None,
        "all to be encrypted anew",
    )
    assert set(count_left(rig.client.database, last).values()) == {0}
    with rig.client.database.write() as connection:
        connection.execute(sa.text("update text_keys set last_used_at = last_used_at - 1000"))
    retire_keys(rig.client.database)
    assert load_needed_keys(rig.client.database) == {last}
    put(keys_file, KEYS[-1])
    [again] = begin_runs(rig, 1)
    [view] = rig.ended(again)
    assert view.status is RunStatus.COMPLETED
    found = stored(rig)
    assert CANARY not in found and all(key not in found + rig.log_text() for key in KEYS)
    assert CANARY not in rig.log_text()
    assert {derive_key_id(key) for key in KEYS if f"{MARK}{derive_key_id(key)}:" in rows_only(rig)} == {last}


def rows_only(rig: Rig) -> str:
    with rig.client.database.engine.connect() as connection:
        return "\n".join(
            str(tuple(row))
            for table in load_schema().sorted_tables
            for row in connection.exec_driver_sql(f'select * from "{table.name}"')
        )


def new_key_is_used(rig: Rig, key: str) -> bool | None:
    rig.client.runs.load_nudged([])
    with rig.client.database.write():  # which is when this process looks for other keys
        pass
    return rig.client.database.sealer.keys.first == derive_key_id(key) or None
