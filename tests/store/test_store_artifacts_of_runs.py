"""The files of a run are owed with its end, taken once, written all or none, and go by rules of their own."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa
from support.store import EMPTY, TTL_S, Store

from hermes_worker.core.effects import GatherArtifacts, Iterate
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.features.retention import deleting_rows as deleting
from hermes_worker.features.retention.erasure_rules import Person
from hermes_worker.features.retention.export_rows import export_rows
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.artifacts.gatherings import (
    ContentGone,
    GatheringClaim,
    Gatherings,
    KeptFile,
    LeftOutFile,
    delete_artifacts,
)
from hermes_worker.store.artifacts.listing import ArtifactNotFound, Artifacts
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import artifact_gatherings, artifacts, blobs, runs
from hermes_worker.store.work_items import ATTEMPTS_MAX

DAY_S = 86_400.0


def owed(hints: list[Hint] | tuple[Hint, ...]) -> list[GatherArtifacts]:
    return [hint.effect for hint in hints if isinstance(hint.effect, GatherArtifacts)]


def ended(store: Store) -> GatherArtifacts:
    run_id = store.submit(artifacts=("*.csv",)).run_id
    [effect] = owed(store.answer(run_id))
    return effect


def taken(store: Store, effect: GatherArtifacts, owner: int | None = None) -> GatheringClaim:
    claim = Gatherings(store.database).claim(effect, store.owner if owner is None else owner)
    assert claim is not None
    return claim


def kept(store: Store, path: str, content: bytes) -> KeptFile:
    return KeptFile(
        path=path,
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        media_type="text/csv",
        modified_at=1.0,
        blob_hash=Gatherings(store.database).store_content(content),
    )


def rows_of(store: Store, table: sa.Table) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_only_a_run_that_declared_files_owes_a_gathering(store: Store) -> None:
    assert owed(store.answer(store.submit().run_id)) == []
    effect = ended(store)
    assert (effect.attempt, rows_of(store, artifact_gatherings)) == (1, 1)
    assert Artifacts(store.database).list_artifacts(effect.run_id).state == "pending"


def test_a_run_that_is_stopped_or_broken_off_owes_it_too(store: Store) -> None:
    stopped, broken = (store.submit(artifacts=("a",)).run_id for _ in range(2))
    assert [one.run_id for one in owed(store.runs.request_stop(stopped)[1])] == [stopped]
    claim = store.turn(broken)
    assert claim.run_id == broken
    [effect] = owed(store.runs.end_broken_step(Iterate(run_id=broken, iteration=1, attempt=1), store.owner, "a defect"))
    assert effect.run_id == broken


def test_a_gathering_is_taken_once_and_written_once(store: Store) -> None:
    effect = ended(store)
    claim = taken(store, effect)
    assert claim.patterns == ("*.csv",)
    assert Gatherings(store.database).claim(effect, store.owner) is None
    files = [kept(store, "b.csv", b"\0\xff"), kept(store, "a.csv", b"1,2")]
    left_out = [LeftOutFile(path="l.csv", reason="it is a link")]
    Gatherings(store.database).settle(claim, files, left_out, left_out_total=7)
    with pytest.raises(LeaseLost):
        Gatherings(store.database).settle(claim, files)
    found = Artifacts(store.database).list_artifacts(effect.run_id)
    assert [view.path for view in found.files] == ["a.csv", "b.csv"]
    assert (found.state, found.gathered, found.left_out, found.left_out_named) == ("done", 2, 7, left_out)
    assert Artifacts(store.database).load_content(found.files[1]) == b"\0\xff"


def test_a_worker_that_vanishes_leaves_it_to_another_and_its_own_writing_is_refused(store: Store) -> None:
    effect = ended(store)
    gone = store.worker("gone")
    first = taken(store, effect, gone.pk)
    before = [kept(store, "a.csv", b"the same")]
    store.vanish(gone)
    store.let_pass(TTL_S)
    [again] = owed(store.sweep().hints)
    assert again == GatherArtifacts(run_id=effect.run_id, attempt=2)
    second = taken(store, again)
    Gatherings(store.database).settle(second, [kept(store, "a.csv", b"the same")])
    with pytest.raises(LeaseLost):
        Gatherings(store.database).settle(first, before)
    assert (rows_of(store, artifacts), _contents(store)) == (1, 1)


def _contents(store: Store) -> int:
    with store.database.read() as connection:
        used = sa.select(sa.func.count()).select_from(blobs.join(artifacts, artifacts.c.blob_hash == blobs.c.hash))
        return int(connection.execute(used).scalar_one())


def test_workers_that_vanish_again_and_again_fail_it_visibly(store: Store) -> None:
    effect = ended(store)
    for _ in range(ATTEMPTS_MAX):
        gone = store.worker("gone")
        taken(store, effect, gone.pk)
        store.vanish(gone)
        store.let_pass(TTL_S)
        effect = (owed(store.sweep().hints) or [effect])[0]
    found = Artifacts(store.database).list_artifacts(effect.run_id)
    assert (found.state, found.reason) == ("failed", "the worker that gathered the files vanished")


def test_a_lost_message_is_sent_again(store: Store) -> None:
    effect = ended(store)
    assert owed(store.sweep(EMPTY).hints) == []
    store.let_pass(60)
    assert owed(store.sweep(EMPTY).hints) == [effect]


def test_what_fails_is_due_again_and_at_last_says_why(store: Store) -> None:
    effect = ended(store)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        claim = taken(store, GatherArtifacts(run_id=effect.run_id, attempt=attempt))
        assert Gatherings(store.database).fail_gathering(claim, "no such\0place") is (attempt == ATTEMPTS_MAX)
    found = Artifacts(store.database).list_artifacts(effect.run_id)
    assert (found.state, found.reason) == ("failed", "no such\ufffdplace")


def test_equal_files_are_stored_once_and_go_with_the_last_that_names_them(store: Store) -> None:
    effects = [ended(store), ended(store)]
    for effect in effects:
        Gatherings(store.database).settle(taken(store, effect), [kept(store, "a.csv", b"shared")])
    [first], [second] = (Artifacts(store.database).list_artifacts(effect.run_id).files for effect in effects)
    assert first.blob_hash == second.blob_hash
    with store.database.write() as connection:
        assert delete_artifacts(connection, artifacts.c.artifact_id == first.artifact_id) == 1
    store.let_pass(2 * 3600)
    assert deleting.delete_blobs(store.database, 100)[1] == 0
    assert Artifacts(store.database).load_content(second) == b"shared"
    with store.database.write() as connection:
        delete_artifacts(connection, artifacts.c.artifact_id == second.artifact_id)
    store.let_pass(2 * 3600)
    deleting.delete_blobs(store.database, 100)
    with pytest.raises(ArtifactNotFound):
        Artifacts(store.database).load_content(second)


def test_contents_that_nobody_recorded_go_after_an_hour(store: Store) -> None:
    before = rows_of(store, blobs)
    Gatherings(store.database).store_content(b"left by a killed worker")
    assert rows_of(store, blobs) == before + 1
    deleting.delete_blobs(store.database, 100)
    assert rows_of(store, blobs) == before + 1
    store.let_pass(2 * 3600)
    deleting.delete_blobs(store.database, 100)
    assert rows_of(store, blobs) == before


def test_a_content_that_went_meanwhile_is_noticed_and_nothing_is_written(store: Store) -> None:
    effect = ended(store)
    claim = taken(store, effect)
    file = kept(store, "a.csv", b"erased meanwhile")
    deleting.delete_blobs(store.database, 100, released_before=store.database.read_clock() + 1)
    with pytest.raises(ContentGone):
        Gatherings(store.database).settle(claim, [file])
    assert rows_of(store, artifacts) == 0
    Gatherings(store.database).settle(claim, [kept(store, "a.csv", b"erased meanwhile")])
    assert rows_of(store, artifacts) == 1


def test_a_rule_lets_files_go_and_the_run_stays(store: Store) -> None:
    effect = ended(store)
    Gatherings(store.database).settle(taken(store, effect), [kept(store, "a.csv", b"old")])
    pruner = Pruner(store.database, DEFAULT_RULES)
    store.let_pass(29 * DAY_S)
    list(pruner.prune_stepwise())
    assert rows_of(store, artifacts) == 1
    store.let_pass(2 * DAY_S)
    list(pruner.prune_stepwise())
    found = Artifacts(store.database).list_artifacts(effect.run_id)
    assert (found.state, found.gathered, list(found.files)) == ("done", 1, [])
    assert rows_of(store, runs) == 1


def test_an_export_has_the_files_and_the_run_takes_them_along(store: Store) -> None:
    effect = ended(store)
    Gatherings(store.database).settle(taken(store, effect), [kept(store, "a.csv", b"mine")])
    told = list(export_rows(store.database, "default", Person(is_everybody=True)))
    assert [row.row["path"] for row in told if row.kind == "artifacts"] == ["a.csv"]
    assert "bWluZQ==" in [row.row["body"] for row in told if row.kind == "blobs"]
    with store.database.read() as connection:
        root = connection.execute(sa.select(runs.c.pk)).scalar_one()
    assert deleting.delete_chain(store.database, root, lambda connection: True) == 1
    assert rows_of(store, artifacts) == rows_of(store, artifact_gatherings) == 0
    store.let_pass(2 * 3600)
    deleting.delete_blobs(store.database, 100)
    assert not any(
        row.row.get("body") == "bWluZQ==" for row in export_rows(store.database, "default", Person(is_everybody=True))
    )
