"""Flood limits of chats over a real broker: every test plays several delivery workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.targets import Target
from hermes_worker.models.governor import Governor
from hermes_worker.tasks.previews import ChatPace

HERE, ELSEWHERE = (Target(platform="telegram", chat=chat) for chat in ("42", "43"))


@pytest.fixture
def client(broker_url: str) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(broker_url, decode_responses=True) as connected:
        yield connected


def worker(client: redis.Redis) -> ChatPace:
    return ChatPace(governor=Governor(client))


def refused(kind: SendErrorKind, retry_after_s: float | None) -> DeliveryError:
    return DeliveryError(kind=kind, message="no", retry_after_s=retry_after_s)


def test_one_worker_s_429_holds_back_all_workers_from_that_chat_and_no_other(client: redis.Redis) -> None:
    assert worker(client).wait_s(HERE) == 0
    worker(client).report_error(HERE, refused(SendErrorKind.RATE_LIMITED, 30.0))
    assert 25 < worker(client).wait_s(HERE) <= 31
    assert worker(client).wait_s(ELSEWHERE) == 0


@pytest.mark.parametrize(("kind", "after_s"), [(SendErrorKind.TRANSIENT, 30.0), (SendErrorKind.RATE_LIMITED, None)])
def test_other_failures_hold_back_nobody(client: redis.Redis, kind: SendErrorKind, after_s: float | None) -> None:
    worker(client).report_error(HERE, refused(kind, after_s))
    assert worker(client).wait_s(HERE) == 0
