"""The real store over SQLite, whose clock is the world's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from simulation.memory import BARE_PROMPT, Report
from support.migrated import bring_up
from support.recount import Counted, counted
from support.store import Store, new_run

from hermes_worker.core.effects import Effect
from hermes_worker.core.prompt_places import Gap, PromptPlace
from hermes_worker.core.run import TERMINAL, RunStatus
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.engine.database import Database
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.budgets import to_budget
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.sweep import SweepPolicy
from hermes_worker.store.tables import auxiliary_calls, budgets, events, messages, runs, tool_calls

_SWEEPS_PER_COUNT = 4
_EPOCH_AS_JULIAN_DAY = 2440587.5


class SqlStore:
    """What the world asks for, answered by the product."""

    def __init__(self, clock: Callable[[], float], policy: SweepPolicy, tools: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="hermes-simulation-")
        path = Path(self._directory.name) / "store.db"
        bring_up(f"sqlite:///{path}")
        database = Database(f"sqlite:///{path}")

        def prepare(connection: Any, _record: Any) -> None:
            connection.execute("PRAGMA synchronous=OFF")
            connection.create_function("julianday", 1, lambda _: clock() / 86_400 + _EPOCH_AS_JULIAN_DAY)

        sa.event.listen(database.engine, "connect", prepare)
        self._store = Store.over(database, policy)
        self.database = database
        self.runs = self._store.runs
        self.calls = self._store.calls
        self.transcripts = self._store.transcripts
        self.waits = Waits(database)
        self.auxiliary_calls = self._store.auxiliary_calls
        self.workers = self._store.workers
        self._tools = tools
        self._said: Counted = {}
        self._sweeps = 0

    def submit(self, run_id: str, *, iterations_max: int, attempts_max: int, prepares: bool) -> list[Hint]:
        """All runs of a world are turns of one conversation, so that they wait for one another as well."""
        new = new_run(
            run_id=run_id,
            session_id="shared",
            system_prompt=BARE_PROMPT,
            gaps=(Gap(PromptPlace.PROJECT, len(BARE_PROMPT)),),
            prepares=prepares,
            tools=self._tools,
            iterations_max=iterations_max,
            attempts_max=attempts_max,
        )
        return list(self.runs.create(new).hints)

    def stop(self, run_id: str, *, is_whole: bool) -> tuple[list[str], list[Hint]]:
        if not is_whole:
            return [run_id], self.runs.request_stop(run_id)[1]
        stopped = self.runs.stop_tree(run_id)
        return list(stopped.run_ids), list(stopped.hints)

    def approve(self, run_id: str, choice: ApprovalChoice) -> list[Hint]:
        return self.waits.approve(run_id, choice, by="cli:tester")

    def end_broken_step(self, effect: Effect, owner: int, message: str) -> list[Hint]:
        return self.runs.end_broken_step(effect, owner, message)

    def stopping(self, run_ids: Collection[str]) -> set[str]:
        return self.runs.find_stopping(run_ids)

    def sweep(self, depths: Mapping[str, int] | None) -> Sequence[Hint]:
        swept = self._store.sweeper.sweep(depths)
        self._sweeps += 1
        if self._sweeps % _SWEEPS_PER_COUNT == 0:
            self._compare_counters()
        return () if swept is None else swept.hints

    def _compare_counters(self) -> None:
        """At every moment the counters say what the rows say, and never less than before."""
        said, true = counted(self.database)
        assert said == true
        assert all(said[key] >= before for key, before in self._said.items())
        self._said = said

    def ended(self) -> bool:
        with self.database.read() as connection:
            over = [status.value for status in TERMINAL]
            counted = sa.select(sa.func.count()).select_from(runs).where(runs.c.status.not_in(over))
            return int(connection.execute(counted).scalar_one()) == 0

    def reports(self) -> list[Report]:
        with self.database.read() as connection:
            return [self._report(connection, row) for row in connection.execute(sa.select(runs)).all()]

    def _report(self, connection: sa.Connection, row: Any) -> Report:
        happened = connection.execute(
            sa.select(events.c.seq, events.c.event).where(events.c.run_pk == row.pk).order_by(events.c.seq)
        ).all()
        said = connection.execute(
            sa.select(messages.c.seq, messages.c.body).where(messages.c.run_pk == row.pk).order_by(messages.c.seq)
        ).all()
        budget = connection.execute(sa.select(budgets).where(budgets.c.root_pk == row.pk)).first()
        root = connection.execute(sa.select(runs.c.run_id).where(runs.c.pk == (row.root_pk or row.pk))).scalar_one()
        calls = connection.execute(sa.select(tool_calls).where(tool_calls.c.run_pk == row.pk)).all()
        return Report(
            run_id=row.run_id,
            status=RunStatus(row.status),
            exit_reason=row.exit_reason,
            iteration=row.iteration,
            charged=row.input_tokens,
            asides_charged=row.cache_read_tokens,
            asides_answered=connection.execute(
                sa.select(sa.func.count())
                .select_from(auxiliary_calls)
                .where(auxiliary_calls.c.run_pk == row.pk, auxiliary_calls.c.answer.is_not(None))
            ).scalar_one(),
            events=[event.event for event in happened],
            event_seqs=[event.seq for event in happened],
            bodies=[json.loads(message.body) for message in said],
            seqs=[message.seq for message in said],
            is_held=row.lease_token is not None or any(call.lease_token is not None for call in calls),
            is_due=row.hinted_at is not None or any(call.hinted_at is not None for call in calls),
            root=root,
            is_turn=row.cause_pk is not None,
            ended_at=row.finished_at or 0.0,
            budget=to_budget(budget) if budget else None,
        )

    def close(self) -> None:
        self._compare_counters()
        self.database.close()
        self._directory.cleanup()
