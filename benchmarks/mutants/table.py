"""The mutants: which guard goes, where, and which tests have to notice."""

# ruff: noqa: E501  the texts stand here as they stand in the code

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Redundancy:
    """Why nothing has to notice that a guard is gone: another one holds the same."""

    argument: str
    second: str
    """The name of the mutant that takes the second guard away; that one has to be noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A guard, and the change that takes it away."""

    name: str
    path: str
    before: str
    """The text to replace; it stands exactly ``times`` times in the file."""
    after: str
    tests: tuple[str, ...]
    """Test files that have to fail."""
    times: int = 1
    redundancy: Redundancy | None = None
    lab: tuple[str, ...] = ()
    """What the lab is to do, beside ``QUIET``, so that the guard is needed; empty where it makes no such situation."""

    def apply(self, text: str) -> str:
        """Apply the change. Raises ``ValueError`` where the text moved on."""
        found = text.count(self.before)
        if found != self.times:
            raise ValueError(f"mutant {self.name!r}: its text stands {found} times in {self.path}, not {self.times}")
        return text.replace(self.before, self.after)


QUIET = "--only-kills --runs 0 --steps 1 --kills 0 --poisons 0 --workers 1 --seed 7"
"""Options of the lab with which nothing happens but what a mutant asks for."""

_RUNS = "hermes_worker/store/runs"
_STATEMENTS = f"{_RUNS}/step_statements.py"
_WRITER = f"{_RUNS}/step_writer.py"
_CLAIMS = f"{_RUNS}/call_claims.py"
_BUDGETS = f"{_RUNS}/budgets.py"
_OUTBOX = "hermes_worker/store/outbox/deliveries.py"
_DELIVER = "hermes_worker/tasks/deliver.py"
_GATEWAY = "hermes_worker/store/gateway.py"
_SLOTS = "hermes_worker/store/jobs/slots.py"

_OF_PEOPLE = ("--people", "1")
_OF_COUNTS = ("--runs", "2", "--sqlite")
_OF_CHILDREN = ("--runs", "2", "--trees", "--sqlite")
_OF_QUESTIONS = ("--runs", "3", "--trees", "--sqlite")


def _meet(*kinds: str) -> tuple[str, ...]:
    """The lab with one duel of each kind (``lab.duels.DuelKind``), and nothing else. No lock decides it, so SQLite
    does, which starts sooner."""
    return ("--sqlite", *(word for kind in kinds for word in ("--duel", kind)))


MUTANTS: tuple[Mutant, ...] = (
    # --- effects of tools
    Mutant(
        name="once-runs-again",
        path="hermes_worker/core/step.py",
        before="if call.replay is Replay.ONCE and event.has_begun and not call.asks:\n",
        after="if False:\n",
        tests=("tests/core/test_step.py",),
        lab=_meet("held_once"),
    ),
    Mutant(
        name="once-begins-unmarked",
        path=_CLAIMS,
        before="BEGIN_CALL = Prepared(_begin_call, takes=HeldCallKey)",
        after="BEGIN_CALL = Prepared(\n"
        "    sa.update(tool_calls).where(IS_HELD).values(unbegun_token=tool_calls.c.unbegun_token), takes=HeldCallKey\n)",
        tests=("tests/store/test_store_calls.py", "tests/store/test_store_sweep.py"),
        lab=_meet("held_once"),
    ),
    Mutant(
        name="begun-counts-as-unbegun",
        path=_CLAIMS,
        before='_begin_call.where(tool_calls.c.unbegun_token == sa.bindparam("token"))',
        after="_begin_call",
        tests=("tests/store/test_store_calls.py", "tests/store/test_store_sweep.py"),
        lab=_meet("held_once"),
    ),
    Mutant(
        name="once-begins-without-token",
        path=_CLAIMS,
        before="BEGIN_CALL = Prepared(_begin_call, takes=HeldCallKey)",
        after="BEGIN_CALL = Prepared(\n"
        "    sa.update(tool_calls)\n"
        "    .where(sa.or_(IS_HELD, sa.and_(*IS_HELD.clauses[:3])))\n"
        "    .values(unbegun_token=None),\n"
        "    takes=HeldCallKey,\n)",
        tests=("tests/store/test_store_calls.py", "tests/store/test_store_sweep.py"),
        lab=_meet("held_begin"),
    ),
    Mutant(
        name="once-begins-unsaid",
        path="hermes_worker/tasks/calls/call_tool.py",
        before="    if claim.replay is Replay.ONCE:\n        faults.pass_point(",
        after="    if False:\n        faults.pass_point(",
        tests=("tests/faults/test_workers.py",),
        lab=_meet("held_once"),
    ),
    Mutant(
        name="key-of-the-attempt",
        path=f"{_RUNS}/calls.py",
        before='return f"{self.run_id}.{self.iteration}.{self.position}"',
        after='return f"{self.run_id}.{self.iteration}.{self.position}.{self.attempt}"',
        tests=("tests/store/test_store_calls.py", "tests/faults/test_workers.py"),
        lab=_meet("held_call"),
    ),
    # --- claims
    Mutant(
        name="call-settled-without-token",
        path=_STATEMENTS,
        before='tool_calls.c.lease_token.is_not_distinct_from(sa.bindparam("token")),',
        after='sa.or_(tool_calls.c.lease_token.is_not_distinct_from(sa.bindparam("token")), tool_calls.c.run_pk > 0),',
        tests=("tests/store/test_store_calls.py",),
    ),
    Mutant(
        name="doubled-hint-claims-call",
        path=_CLAIMS,
        before="            tool_calls.c.hinted_at.is_not(None),\n",
        after="",
        tests=("tests/store/test_store_calls.py",),
        lab=_meet("doubled_call"),
    ),
    Mutant(
        name="doubled-hint-claims-iteration",
        path=f"{_RUNS}/runs.py",
        before='        runs.c.hinted_at.is_not(None),\n        runs.c.lease_token.is_(None),\n        runs.c.iteration == sa.bindparam("iter"),\n',
        after='        runs.c.iteration == sa.bindparam("iter"),\n',
        tests=("tests/store/test_store_turns.py", "tests/store/test_store_races.py"),
        lab=_meet("doubled_turn"),
    ),
    Mutant(
        name="older-attempt-claims-call",
        path=_CLAIMS,
        before='tool_calls.c.attempt == sa.bindparam("att"),',
        after='sa.or_(tool_calls.c.attempt == sa.bindparam("att"), tool_calls.c.attempt > 0),',
        tests=("tests/store/test_store_calls.py", "tests/store/test_store_sweep.py"),
    ),
    Mutant(
        name="newer-state-claimed",
        path=_CLAIMS,
        before="                runs.c.state_version <= STATE_VERSION,\n",
        after="",
        tests=("tests/store/test_store_calls.py",),
    ),
    Mutant(
        name="dead-worker-renews",
        path="hermes_worker/store/workers.py",
        before='.where(workers.c.pk == sa.bindparam("worker"), workers.c.state == "alive")\n    .values(\n        expires_at',
        after='.where(workers.c.pk == sa.bindparam("worker"))\n    .values(\n        expires_at',
        tests=("tests/store/test_store_holdings.py", "tests/tasks/test_leases.py", "tests/store/test_store_sweep.py"),
    ),
    Mutant(
        name="frozen-process-trusts-its-leases",
        path="hermes_worker/tasks/leases.py",
        before="return time.clock_gettime(STEADY_CLOCK) - self._renewed_at < self._ttl_s * _TRUSTED_PART",
        after="return True",
        tests=("tests/tasks/test_leases.py",),
        lab=_meet("held_delivery"),
    ),
    Mutant(
        name="sweep-takes-moved-call",
        path="hermes_worker/store/sweep.py",
        before="return found is not None and bool(found.lease_token == orphan.lease_token)",
        after="return True",
        tests=("tests/store/test_store_sweep.py", "tests/store/test_store_races.py"),
    ),
    Mutant(
        name="step-without-event-number",
        path=_STATEMENTS,
        before='runs.c.event_seq == sa.bindparam("seen_event_seq"),',
        after='sa.or_(runs.c.event_seq == sa.bindparam("seen_event_seq"), runs.c.pk > 0),',
        tests=("tests/store/test_stepping.py", "tests/store/test_store_races.py"),
    ),
    Mutant(
        name="step-without-token",
        path=_STATEMENTS,
        before='runs.c.lease_token.is_not_distinct_from(sa.bindparam("seen_token")),',
        after='sa.or_(runs.c.lease_token.is_not_distinct_from(sa.bindparam("seen_token")), runs.c.pk > 0),',
        tests=("tests/store/test_stepping.py", "tests/store/test_store_races.py", "tests/store/test_store_turns.py"),
        redundancy=Redundancy(
            argument="A claim is taken away by a step, and each step that takes one away writes an event, so the "
            "event number that a late holder read has moved as well.",
            second="step-without-event-number",
        ),
    ),
    # --- joins and sessions
    Mutant(
        name="join-without-lock",
        path="hermes_worker/store/rows.py",
        before='    row = _LOCK_RUN.one(connection, {"run": pk})\n    return to_loaded',
        after='    row = _READ_RUN.one(connection, {"run": pk})\n    return to_loaded',
        tests=("tests/store/test_store_races.py",),
    ),
    Mutant(
        name="join-before-the-last-child",
        path=_WRITER,
        before="waiting.children_max, children.lock_waiting_call)\n    if not is_last:",
        after="waiting.children_max, children.lock_waiting_call)\n    if False:",
        tests=("tests/store/test_store_children.py",),
        lab=_OF_CHILDREN,
    ),
    Mutant(
        name="session-freed-by-anybody",
        path=_WRITER,
        before='sessions.c.active_run_pk == sa.bindparam("run"))\n    .values(active_run_pk=None',
        after='sa.or_(sessions.c.active_run_pk == sa.bindparam("run"), sessions.c.pk > 0))\n    .values(active_run_pk=None',
        tests=("tests/store/test_store_stop.py", "tests/store/test_store_sessions.py"),
        lab=_OF_PEOPLE,
    ),
    # --- budgets
    Mutant(
        name="tokens-charged-twice",
        path=_BUDGETS,
        before="        tokens_spent=_tokens_after,\n",
        after='        tokens_spent=_tokens_after + sa.bindparam("tokens"),\n',
        tests=("tests/store/test_store_budgets.py",),
        lab=_OF_COUNTS,
    ),
    Mutant(
        name="money-charged-twice",
        path=_BUDGETS,
        before="        nano_usd_spent=_usd_after,\n",
        after='        nano_usd_spent=_usd_after + sa.bindparam("nano_usd"),\n',
        tests=("tests/store/test_store_budgets.py",),
        lab=_OF_COUNTS,
    ),
    Mutant(
        name="reservation-kept",
        path=_BUDGETS,
        before='tokens_reserved=budgets.c.tokens_reserved - sa.bindparam("tokens_held"),',
        after='tokens_reserved=budgets.c.tokens_reserved - 0 * sa.bindparam("tokens_held"),',
        tests=("tests/store/test_store_budgets.py",),
        lab=_OF_COUNTS,
    ),
    Mutant(
        name="budget-reserved-without-lock",
        path=_BUDGETS,
        before="_LOCK = Prepared(sa.select(*BUDGET_COLUMNS).where(_this).with_for_update(), ",
        after="_LOCK = Prepared(sa.select(*BUDGET_COLUMNS).where(_this), ",
        tests=("tests/store/test_store_budgets.py", "tests/store/test_store_races.py"),
    ),
    Mutant(
        name="lost-attempt-unbooked",
        path=f"{_RUNS}/lost_attempts.py",
        before="    priced = pricing(loaded.model, _read_provider_position(loaded.run.memory), usage) if pricing is not None else None\n"
        "    return Spent(usage=usage, cost=estimate_lost_cost(usage, priced, loaded.usual))\n",
        after="    return Spent()\n",
        tests=("tests/store/test_store_unknown_attempts.py",),
        lab=_meet("held_reply"),
    ),
    # --- deliveries
    Mutant(
        name="delivery-settled-without-token",
        path=_OUTBOX,
        before="deliveries.c.lease_token == claim.token)\n            .values(updated_at",
        after="deliveries.c.pk > 0)\n            .values(updated_at",
        tests=("tests/store/test_delivering.py",),
        lab=_meet("held_delivery", "doubled_delivery"),
    ),
    Mutant(
        name="doubled-hint-claims-delivery",
        path=_OUTBOX,
        before="                    deliveries.c.hinted_at.is_not(None),\n                    deliveries.c.attempts == effect.attempt - 1,\n",
        after="",
        tests=("tests/store/test_delivering.py",),
        lab=_meet("doubled_delivery"),
    ),
    Mutant(
        name="older-attempt-claims-delivery",
        path=_OUTBOX,
        before="                    deliveries.c.attempts == effect.attempt - 1,\n",
        after="",
        tests=("tests/store/test_delivering.py",),
        redundancy=Redundancy(
            argument="A delivery that is claimed or settled is not due, so no message of whichever attempt can claim "
            "it; one that is due again may be claimed by an older message, which then makes the attempt that is due.",
            second="doubled-hint-claims-delivery",
        ),
    ),
    Mutant(
        name="frozen-worker-begins-delivery",
        path=_DELIVER,
        before="if not self._parts.leases.is_surely_held(self._claim.token):",
        after="if False:",
        times=2,
        tests=("tests/store/test_delivering.py",),
        lab=_meet("held_delivery"),
    ),
    # --- people
    Mutant(
        name="question-answered-twice",
        path=f"{_RUNS}/waits.py",
        before="waits.c.kind == kind.value, waits.c.closed_at.is_(None))\n    if wait_id",
        after="waits.c.kind == kind.value)\n    if wait_id",
        tests=("tests/store/test_store_waits.py",),
        lab=_OF_QUESTIONS,
    ),
    Mutant(
        name="known-event-taken-again",
        path=_GATEWAY,
        before="        if not taken.rowcount:\n            raise EventKnown\n",
        after="",
        tests=("tests/store/test_store_gateway.py", "tests/inbound/test_listening.py"),
        lab=_OF_PEOPLE,
    ),
    Mutant(
        name="account-lease-without-token",
        path=_GATEWAY,
        before="is_ours = (channels.c.account == hold.account) & (channels.c.lease_token == hold.token)",
        after="is_ours = channels.c.account == hold.account",
        tests=("tests/store/test_store_gateway.py",),
        lab=_OF_PEOPLE,
    ),
    Mutant(
        name="account-lease-without-end",
        path=_GATEWAY,
        before="return is_ours & (channels.c.lease_until > db_now())",
        after="return is_ours",
        tests=("tests/store/test_store_gateway.py",),
        redundancy=Redundancy(
            argument="Whoever takes an account over replaces its token, so a holder past its end writes nothing once "
            "somebody else listens; before that, nobody else does.",
            second="account-lease-without-token",
        ),
    ),
    Mutant(
        name="slot-settled-without-lock",
        path=_SLOTS,
        before="        .with_for_update(skip_locked=True)\n",
        after="",
        tests=("tests/store/test_store_jobs.py", "tests/store/test_job_scale.py"),
        lab=_OF_PEOPLE,
    ),
    Mutant(
        name="slot-known-begins-again",
        path=_SLOTS,
        before="is_begun=tick.starts and (row.pk, tick.slots[-1].at) not in known)",
        after="is_begun=tick.starts)",
        tests=("tests/store/test_store_jobs.py",),
        lab=_OF_PEOPLE,
    ),
    Mutant(
        name="memory-written-twice",
        path="hermes_worker/features/memory/rows.py",
        before="    if author.call_key is None:\n        return None\n",
        after="    return None\n",
        tests=("tests/store/test_store_memories.py",),
        lab=_meet("held_memory"),
    ),
    Mutant(
        name="request-key-taken-twice",
        path="hermes_worker/store/access/idempotency_keys.py",
        before="        if written.first() is None:\n            raise KeyTaken\n",
        after="",
        tests=(
            "tests/store/test_store_create.py",
            "tests/store/test_store_access.py",
            "tests/store/test_store_races.py",
        ),
        lab=_OF_PEOPLE,
    ),
)
