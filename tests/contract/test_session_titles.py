"""Titles of conversations: over a real server of their own, after the answer, and paid for by the run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import pytest
from dialects import HELLO, Said
from strict_server import StrictServer, status
from support.store import Store, check
from support.turns import Turns, change_parts

from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.pricing import parse_own_price
from hermes_worker.core.run import RunStatus
from hermes_worker.models.chain import ModelChoice, ProviderChain
from hermes_worker.store.runs.trees import Trees

pytestmark = pytest.mark.usefixtures("no_time_for_short_waits")


@pytest.fixture
def servers() -> Iterator[tuple[StrictServer, StrictServer]]:
    with StrictServer() as main, StrictServer() as titles:
        titles.says(Said(text='<think>hm</think>"A Friendly Greeting"'))
        yield main, titles


def turns_over(store: Store, servers: tuple[StrictServer, StrictServer]) -> Turns:
    own = ProviderChain(ModelChoice(base_url=servers[1].base_url, api_key="k", model="small"))
    turns = Turns.over(store, servers[0].base_url, aside={AuxTask.TITLE: own})
    turns.parts = change_parts(
        turns.parts, prices=dict([parse_own_price("custom:small=10/20"), parse_own_price("custom:strict=1/1")])
    )
    return turns


def test_a_conversation_gets_its_title_after_its_first_turn(
    store: Store, servers: tuple[StrictServer, StrictServer]
) -> None:
    turns = turns_over(store, servers)
    run_id = turns.submit(input="hello there", session_id="s", tokens_max=100_000)
    assert store.views.load_run(run_id).title == "hello there"
    before = store.views.load_run(run_id).usage.total
    turns.finish(run_id)
    check(store)

    view = store.views.load_run(run_id)
    assert (view.output, view.title) == (HELLO.text, "hello there")
    assert view.session_title == "A Friendly Greeting"
    assert view.status is RunStatus.COMPLETED
    asked = json.dumps(servers[1].accepted[0])
    assert "hello there" in asked and HELLO.text in asked and '"small"' in asked
    # Both calls are the run's: 20 input, of which 8 cached, and 5 output tokens each.
    assert view.usage.total == before + 2 * 25
    assert view.cost_usd is not None and view.cost_usd > Decimal("0.0002")
    budget = Trees(store.database).load_budget(run_id).budget
    assert budget is not None
    assert budget.spent.tokens == view.usage.total

    again = turns.submit(input="and now?", session_id="s")
    turns.finish(again)
    view = store.views.load_run(again)
    assert (view.title, view.session_title) == ("and now?", "A Friendly Greeting")
    assert len(servers[1].accepted) == 1


def test_a_title_that_nobody_gives_stays_as_it_is(store: Store, servers: tuple[StrictServer, StrictServer]) -> None:
    servers[0].says(HELLO)
    turns = turns_over(store, servers)
    for server in servers:
        server.faults()
    servers[1].faults(*[status(400, "no")] * 9)
    servers[0].says(HELLO, Said(text=""))
    run_id = turns.submit(input="hello there")
    turns.finish(run_id)
    view = store.views.load_run(run_id)
    assert (view.status, view.title) == (RunStatus.COMPLETED, "hello there")


def test_no_model_is_asked_for_titles_unless_one_is_named(
    store: Store, servers: tuple[StrictServer, StrictServer]
) -> None:
    turns = Turns.over(store, servers[0].base_url)
    run_id = turns.submit(input="hello there")
    turns.finish(run_id)
    assert len(servers[0].accepted) == 1
    assert store.views.load_run(run_id).title == "hello there"


def test_a_run_that_failed_gets_none(store: Store, servers: tuple[StrictServer, StrictServer]) -> None:
    servers[0].faults(*[status(401, "no")] * 3)
    turns = turns_over(store, servers)
    run_id = turns.submit(input="hello there")
    turns.finish(run_id)
    assert servers[1].accepted == []
