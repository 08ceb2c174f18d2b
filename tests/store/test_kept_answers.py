"""Answers that are kept for repeated requests, on both databases."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.access.kept_answers import RequestAtWork, RequestIdentity, StoredAnswer, StoredAnswers
from hermes_worker.store.tables import kept_answers

NAME = RequestIdentity(tenant="default", principal="p", key="k", operation="POST /x", fingerprint="f")
ANSWER = StoredAnswer(status=201, headers=[("content-type", "application/json")], body='{"a": 1}')


@pytest.fixture
def kept(store: Store) -> StoredAnswers:
    return StoredAnswers(store.database)


def lapse(store: Store) -> None:
    with store.database.write() as connection:
        connection.execute(sa.update(kept_answers).values(held_until=0.0))


def test_a_request_is_done_once_and_answered_again(kept: StoredAnswers) -> None:
    token = kept.begin(NAME)
    assert isinstance(token, str)
    with pytest.raises(RequestAtWork):
        kept.begin(NAME)
    kept.store_answer(NAME, token, ANSWER)
    assert kept.begin(NAME) == ANSWER


@pytest.mark.parametrize("other", [{"fingerprint": "g"}, {"operation": "POST /y"}])
def test_a_key_stands_for_one_request(kept: StoredAnswers, other: dict[str, str]) -> None:
    token = str(kept.begin(NAME))
    for _ in range(2):
        with pytest.raises(IdempotencyConflict):
            kept.begin(replace(NAME, **other))
        kept.store_answer(NAME, token, ANSWER)


@pytest.mark.parametrize("other", [{"tenant": "acme"}, {"principal": "q"}, {"key": "l"}])
def test_a_key_is_its_holders_own(kept: StoredAnswers, other: dict[str, str]) -> None:
    kept.store_answer(NAME, str(kept.begin(NAME)), ANSWER)
    assert isinstance(kept.begin(replace(NAME, **other)), str)


def test_a_request_that_came_to_nothing_leaves_its_key(kept: StoredAnswers) -> None:
    kept.release_key(NAME, str(kept.begin(NAME)))
    assert isinstance(kept.begin(replace(NAME, fingerprint="g")), str)


def test_who_takes_over_from_a_dead_process_has_the_last_word(kept: StoredAnswers, store: Store) -> None:
    dead = str(kept.begin(NAME))
    lapse(store)
    token = str(kept.begin(NAME))
    kept.store_answer(NAME, dead, replace(ANSWER, body="late"))
    kept.release_key(NAME, dead)
    assert not kept.renew_hold(NAME, dead)
    with pytest.raises(RequestAtWork):
        kept.begin(NAME)
    kept.store_answer(NAME, token, ANSWER)
    assert kept.begin(NAME) == ANSWER


def test_a_request_that_lives_is_not_taken_over(kept: StoredAnswers, store: Store) -> None:
    token = str(kept.begin(NAME))
    lapse(store)
    assert kept.renew_hold(NAME, token)
    with pytest.raises(RequestAtWork):
        kept.begin(NAME)


def test_of_many_at_once_one_works(kept: StoredAnswers) -> None:
    began, refused = [], []
    ready = threading.Barrier(8)

    def ask() -> None:
        ready.wait()
        try:
            began.append(kept.begin(NAME))
        except RequestAtWork:
            refused.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(began), len(refused)) == (1, 7)


def test_answers_go_after_a_day(kept: StoredAnswers, store: Store) -> None:
    kept.store_answer(NAME, str(kept.begin(NAME)), ANSWER)
    kept.begin(replace(NAME, key="young"))
    with store.database.write() as connection:
        old = sa.update(kept_answers).where(kept_answers.c.key == "k")
        connection.execute(old.values(created_at=kept_answers.c.created_at - 86_401.0))
    pruned = [
        each.count for each in Pruner(store.database, DEFAULT_RULES).prune_stepwise() if each.what == "idempotency_keys"
    ]
    assert sum(pruned) == 1
    with store.database.read() as connection:
        assert connection.execute(sa.select(kept_answers.c.key)).scalars().all() == ["young"]
