"""What a type checker tells a user of either client."""

from __future__ import annotations

from pathlib import Path

import pytest
from mypy import api

_PROGRAM = """
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from hermes_worker.client import AsyncHermesClient, Event, HermesClient, ToldEvent
from hermes_worker.features.deliveries.schema import DeliveryObject
from hermes_worker.schemas.fleet import WorkerObject


def block(client: HermesClient) -> None:
    assert_type(client.submit("hello", idempotency_key="k"), str)
    assert_type(client.workers(), list[WorkerObject])
    assert_type(client.deliveries(state="failed"), Iterator[DeliveryObject])
    assert_type(client.events("run_1", after="3"), Iterator[Event])
    assert_type(client.wait("run_1", timeout_s=2.0), str | None)
    assert_type(HermesClient.submit(client, "hello"), str)
    client.submit(5)  # type: ignore[arg-type]
    client.memory("profile")  # type: ignore[call-arg]
    client.wait("run_1", timeout=2.0)  # type: ignore[call-arg]
    client.backlog().nothing  # type: ignore[attr-defined]
    with HermesClient("http://127.0.0.1") as same:
        assert_type(same, HermesClient)


async def suspend(client: AsyncHermesClient) -> None:
    assert_type(await client.submit("hello", idempotency_key="k"), str)
    assert_type(await client.workers(), list[WorkerObject])
    assert_type(client.deliveries(state="failed"), AsyncIterator[DeliveryObject])
    assert_type(client.tree_events("run_1"), AsyncIterator[ToldEvent])
    assert_type(await client.wait("run_1", timeout_s=2.0), str | None)
    await client.submit(5)  # type: ignore[arg-type]
    client.close()  # type: ignore[unused-coroutine]
"""


@pytest.mark.nightly
def test_both_clients_keep_the_types_of_each_operation(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    found, wrong, code = api.run(["--strict", "--cache-dir", str(tmp_path / "cache"), str(program)])
    assert (code, found, wrong) == (0, "Success: no issues found in 1 source file\n", "")
