"""A worker that was frozen between a claim and its work begins nothing: by now the step may be somebody else's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.desk import NOON, Desk
from support.store import EMPTY, TTL_S, Store, opened

from hermes_worker.channels.dispatcher import Dispatcher
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.effects import Collect, SendDelivery
from hermes_worker.core.messages import ModelReply
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.store.jobs.executions import Executions
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import deliveries, firings
from hermes_worker.tasks import leases as leases_module
from hermes_worker.tasks.deliver import DeliveryContext, deliver
from hermes_worker.tasks.jobs.collect import CollectingContext, collect
from hermes_worker.tasks.leases import AbortReason, Leases
from scheduler import jobs as work

IDLE = {**EMPTY, "delivery": 0}


class Clock:
    """``time`` for one module."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, clock: int) -> float:
        return self.now

    def freeze(self) -> None:
        """As if the process had been stopped for longer than its term."""
        self.now += 2 * TTL_S


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    return clock


class Sent:
    """A publisher that keeps what it is given."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def send(self, hints: Any) -> int:
        self.hints += hints
        return len(hints)

    def count_waiting(self) -> dict[str, int]:
        return dict(IDLE)


class Freezing:
    """What it wraps, after whose call ``name`` the process is frozen."""

    def __init__(self, wrapped: Any, name: str, freeze: Callable[[], None]) -> None:
        self._wrapped, self._name, self._freeze = wrapped, name, freeze

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if name != self._name:
            return found

        def call(*args: Any, **named: Any) -> Any:
            result = found(*args, **named)
            self._freeze()
            return result

        return call


def leases_of(store: Store) -> Leases:
    leases = Leases(store.workers, name="us", queues="delivery", ttl_s=TTL_S)
    leases.register()
    return leases


def delivering(store: Store, directory: Path, after: str, freeze: Callable[[], None]) -> DeliveryContext:
    return DeliveryContext(
        outbox=Freezing(Deliveries(store.database), after, freeze),
        views=store.views,
        dispatcher=Dispatcher(values={}, directory=directory, allows_private=True),
        sender=Sent(),
        leases=leases_of(store),
    )


def deliver_due(store: Store, parts: DeliveryContext) -> None:
    with store.database.read() as connection:
        due = connection.execute(sa.select(deliveries).where(deliveries.c.hinted_at.is_not(None))).all()
    for row in due:
        effect = SendDelivery(run_id="", delivery_id=row.delivery_id, attempt=row.attempts + 1)
        deliver(parts, effect, row.hinted_at)


def test_a_worker_that_was_frozen_after_its_claim_begins_no_delivery(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    run_id = store.submit(deliver=["local"]).run_id
    store.answer(run_id, ModelReply(text="All is well."))
    parts = delivering(store, tmp_path / "output", "claim", clock.freeze)

    deliver_due(store, parts)

    (view,) = parts.outbox.list()
    assert (view.state, view.attempts) == (DeliveryState.PENDING, 0)
    assert not list(tmp_path.rglob("*.md"))

    store.sweep(IDLE)
    deliver_due(store, replace(parts, outbox=Deliveries(store.database)))
    (view,) = parts.outbox.list()
    assert (view.state, view.attempts) == (DeliveryState.DELIVERED, 1)


def test_a_worker_that_was_thawed_and_has_a_row_again_begins_no_delivery(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    """The thread that renews the lease may wake first: the process is trusted again, under another row."""
    store.answer(store.submit(deliver=["local"]).run_id)
    parts = delivering(store, tmp_path / "output", "claim", lambda: None)

    def freeze() -> None:
        clock.freeze()
        store.let_pass(2 * TTL_S)
        store.sweep(IDLE)
        assert not parts.leases.renew()
        assert parts.leases.is_trusted

    deliver_due(store, replace(parts, outbox=Freezing(parts.outbox, "claim", freeze)))  # type: ignore[arg-type]

    assert not list(tmp_path.rglob("*.md"))


def test_a_worker_that_was_frozen_after_its_claim_decides_nothing_about_the_delivery(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    """Not what becomes of its previews, its buttons and its other targets either."""
    store.answer(store.submit(deliver=["all"]).run_id)
    parts = delivering(store, tmp_path / "output", "claim", clock.freeze)

    deliver_due(store, parts)

    assert [view.state for view in parts.outbox.list()] == [DeliveryState.PENDING]
    store.sweep(IDLE)
    deliver_due(store, replace(parts, outbox=Deliveries(store.database)))
    assert [view.state for view in parts.outbox.list()] == [DeliveryState.FAILED], "no home channel is set"


def test_a_worker_that_was_frozen_between_its_claim_and_the_message_sends_none(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    """However late: what it read after the guard at the beginning took it so long."""
    run_id = store.submit(deliver=["local"]).run_id
    store.answer(run_id, ModelReply(text="All is well."))
    frozen: list[None] = []
    parts = delivering(store, tmp_path / "output", "claim", lambda: None)

    class Views:
        def __getattr__(self, name: str) -> Any:
            if not frozen:
                frozen.append(clock.freeze())
            return getattr(store.views, name)

    deliver_due(store, replace(parts, views=Views()))

    assert frozen
    assert not list(tmp_path.rglob("*.md"))
    assert [view.state for view in parts.outbox.list()] == [DeliveryState.PENDING]


def test_a_worker_that_was_frozen_after_its_claim_begins_no_script(tmp_path: Path, clock: Clock) -> None:
    home = tmp_path / "home"
    (home / "scripts").mkdir(parents=True)
    (home / "scripts" / "a.sh").write_text("echo $$ >> $HERMES_JOB_DATA/ran")
    with opened(f"sqlite:///{tmp_path / 'collect.db'}") as store:
        desk = Desk(store, home)
        row = desk.add(script="a.sh")
        work.run_now(desk.jobs, row.job_id)
        (firing_id,) = [hint.effect.firing_id for hint in desk.tick() if isinstance(hint.effect, Collect)]
        executions = Executions(store.database)
        parts = CollectingContext(
            executions=Freezing(executions, "claim", clock.freeze),
            dispatcher=Dispatcher(values={}, directory=tmp_path / "output"),
            sender=Sent(),
            leases=leases_of(store),
            home=home,
            skills=SkillShelf(Skills(store.database), home),
            environ={"PATH": "/usr/bin:/bin"},
            env_passthrough=(),
            script_timeout_s=20,
        )

        collect(parts, firing_id, NOON)

        assert not list(home.rglob("ran"))
        with store.database.read() as connection:
            firing = connection.execute(sa.select(firings).where(firings.c.pk == firing_id)).one()
        assert (firing.execution, firing.lease_token) == ("pending", None)
        collect(replace(parts, executions=executions), firing_id, NOON)
        (ran,) = home.rglob("ran")
        assert len(ran.read_text().splitlines()) == 1


@pytest.mark.parametrize(("may_hand_over", "reason"), [(True, AbortReason.DRAIN), (False, None)])
def test_a_step_that_may_be_given_back_is_given_back_by_a_worker_that_was_frozen(
    store: Store, clock: Clock, may_hand_over: bool, reason: AbortReason | None
) -> None:
    """Model calls, auxiliary calls and prompts: each of them looks at its signal before it begins."""
    leases = leases_of(store)
    clock.freeze()
    with leases.hold_claim("token", "run", may_hand_over=may_hand_over) as abort:
        assert abort.reason == reason
