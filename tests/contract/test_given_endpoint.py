"""A run is asked of the server it was given to, and of no other."""

from __future__ import annotations

from strict_server import StrictServer
from support.store import Store
from support.turns import Turns

from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.models.identity import STAND_IN
from hermes_worker.tasks.iteration.requests import ModelOptions

GIVEN = "https://models.example/v1"


def test_a_worker_that_asks_somebody_else_leaves_the_run_alone(store: Store, server: StrictServer) -> None:
    stand_in = Turns.over(store, server.base_url, options=ModelOptions(endpoint=STAND_IN))
    run_id = stand_in.submit(endpoint=GIVEN, model="nope")
    assert stand_in.step(run_id)
    assert not server.requests
    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    waiting = store.views.list_events_after(run_id, 0)[-1]
    assert waiting.name == RunEventName.WAITING
    assert f"it was given to nope at {GIVEN}, and the workers ask the scripted stand-in" in waiting.data["reason"]

    its_own = Turns.over(store, server.base_url, options=ModelOptions(endpoint=GIVEN))
    its_own.wake(run_id)
    its_own.finish(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    assert server.requests


def test_a_run_that_nobody_gave_to_a_server_is_asked_of_any(store: Store, server: StrictServer) -> None:
    turns = Turns.over(store, server.base_url, options=ModelOptions(endpoint=GIVEN))
    run_id = turns.submit()
    turns.finish(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
