"""Fork a run: accept a run that goes on from an earlier point of another one. And build the report of a replay."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from hermes_worker import __version__
from hermes_worker.core.budget import NANO
from hermes_worker.core.errors import HermesError
from hermes_worker.core.forks import FORK_TAG, REPLAY_TAG, ForkMatch, ForkTerms, ForkTools
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.principals import Principal
from hermes_worker.core.priority import Priority
from hermes_worker.core.run_views import RunView
from hermes_worker.core.sources import EVALUATION_SOURCE, GUEST_SOURCE
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.titles import title_fork
from hermes_worker.features.forks.replay_rules import find_difference
from hermes_worker.features.forks.rows import (
    NewFork,
    ReplayFork,
    list_replay_forks,
    load_original,
    load_replies,
    mark_as_counted,
    open_fork,
)
from hermes_worker.features.forks.schema import ReplayedRun, ReplayObject
from hermes_worker.live_settings import ChosenSettings
from hermes_worker.observe import count, find_fact, log
from hermes_worker.services.run_stages import configure
from hermes_worker.services.submission import Submission
from hermes_worker.services.submission_rules import require_valid_forms
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.settings.overriding import filter_for_callers
from hermes_worker.store.runs.runs import Created, NewRun, compute_fingerprint, create_run_id
from hermes_worker.tracing.recording import record_submission
from hermes_worker.wiring import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """A fork as it is asked for; ``None`` keeps what the original has."""

    run_id: str
    step: int
    """The iterations of the original that stand before the fork."""
    model: str | None = None
    prompt: str | None = None
    """The whole system prompt."""
    tools: ForkTools = ForkTools.RECORDED
    match: ForkMatch = ForkMatch.STRICT
    iterations_max: int | None = None
    tokens_max: int | None = None
    cost_usd_max: float | None = None
    replay: str | None = None
    """The replay that an evaluation is part of."""
    idempotency_key: str | None = None


def fork_run(client: Client, asked: ForkRequest, principal: Principal) -> Created:
    """Accept a fork without announcing it. It has a session of its own, and a budget of its own. Idempotent under
    ``asked.idempotency_key``. Raises ``RunNotFound``, ``NotForkable``, ``SessionErased``, ``InvalidSubmission``,
    ``IdempotencyConflict`` and ``LimitReached``."""
    require_valid_forms(asked)
    with client.database.read() as connection:
        original, said = load_original(connection, asked.run_id)
    chosen = client.live_settings.choose_settings(original.tenant, run=filter_for_callers(said.overrides))
    run_id = create_run_id()
    new = NewFork(
        run_id=run_id,
        original=original,
        has_input=said.input != [],
        terms=ForkTerms(run_id=asked.run_id, step=asked.step, rows=0, tools=asked.tools, match=asked.match),
        prompt=asked.prompt,
        title=title_fork(original.title, asked.step),
    )
    fingerprint = {**{name: getattr(asked, name) for name in asked.__slots__}, "idempotency_key": None}
    created = client.runs.create(
        NewRun(
            spec=replace(_build_spec(client, asked, said, chosen, principal), about=new.title),
            tenant=original.tenant,
            principal=principal.name,
            run_id=run_id,
            session_id=run_id,
            system_prompt="",
            tools="[]",
            workspace="{}",
            idempotency_key=asked.idempotency_key,
            fingerprint=compute_fingerprint(fingerprint),
            open_session=partial(open_fork, new=new),
        ),
        mark_as_counted if asked.tools.is_evaluation else None,
    )
    if not created.was_replayed:
        count("run.submitted")
        record_submission(created.run_id, principal.source, find_fact("request_id"))
        log.info("run.submitted", run_id=created.run_id, session_id=created.run_id, source=principal.source)
    return replace(created, session_id=created.run_id)


def _build_spec(
    client: Client, asked: ForkRequest, said: RunSpec, chosen: ChosenSettings, principal: Principal
) -> RunSpec:
    """Build the submission of a fork from that of its original. Nothing that was allowed goes over: neither standing
    permissions nor targets. An evaluation also leaves no files, and is found by no tag of the original's: one that is
    part of a replay is left out of lists, and one that a person made by hand is not."""
    spec = replace(
        said,
        input=[],
        history=(),
        # A guest's run stays a guest's: whoever forks it does not lend the guest more rights.
        source=GUEST_SOURCE if said.source_kind == GUEST_SOURCE else principal.source,
        approvals="deny" if said.approvals == "deny" else None,
        files=None,
        echo={},
        forced_tools=said.forced_tools if asked.step == 0 else (),
        iterations_max=asked.iterations_max or said.iterations_max,
        tokens_max=asked.tokens_max or said.tokens_max,
        nano_usd_max=said.nano_usd_max if asked.cost_usd_max is None else int(asked.cost_usd_max * NANO),
        program=__version__,
        configuration=name_configuration(chosen.settings),
        layers=chosen.layers,
        overrides=chosen.overrides,
        overridden_by=chosen.origins,
    )
    if asked.model is not None or asked.cost_usd_max is not None:
        model = asked.model or said.model
        submission = Submission(
            input="", model=model, principal=principal, source=spec.source, cost_usd_max=asked.cost_usd_max
        )
        configured = configure(submission, client.settings, chosen)
        spec = replace(spec, model=configured.model, endpoint=configured.endpoint)
    if not asked.tools.is_evaluation:
        return spec
    own = (FORK_TAG,) if asked.replay is None else (EVALUATION_SOURCE, f"{REPLAY_TAG}{asked.replay}")
    return replace(spec, source=EVALUATION_SOURCE, priority=Priority.LOW.value, artifacts=(), tags=own, metadata={})


def build_replay(client: Client, tenant: str, name: str) -> ReplayObject | None:
    """Build the report of a replay from the rows of its runs and of their originals; ``None`` where there is none.
    Originals that were removed since are left out."""
    with client.database.read() as connection:
        forks = list_replay_forks(connection, tenant, name)
    rows = []
    for fork in forks:
        with suppress(HermesError):  # the original or the replay was removed meanwhile
            rows.append(_compare(client, fork))
    return _build_report(name, rows) if forks else None


def _compare(client: Client, fork: ReplayFork) -> ReplayedRun:
    before, after = (client.views.load_run(run_id) for run_id in (fork.terms.run_id, fork.run_id))
    replies = [load_replies(client.database, run_id) for run_id in (fork.terms.run_id, fork.run_id)]
    return ReplayedRun(
        run_id=fork.terms.run_id,
        title=before.title,
        replay_run_id=fork.run_id,
        problem=None if after.is_completed else f"the replay ended as {after.exit_text or 'unfinished'}",
        differs_at=find_difference(*replies),
        answer_before=before.output or "",
        answer_after=after.output or "",
        steps_before=before.iteration,
        steps_after=after.iteration,
        cost_before_usd=_read_cost(before),
        cost_after_usd=_read_cost(after),
        grades=fork.grades,
    )


def _read_cost(view: RunView) -> float | None:
    return None if view.cost_usd is None or view.cost_status is CostStatus.UNKNOWN else float(view.cost_usd)


def _build_report(name: str, rows: Sequence[ReplayedRun]) -> ReplayObject:
    names = dict.fromkeys(name for row in rows for name in row.grades)
    return ReplayObject(
        name=name,
        against={},
        runs=len(rows),
        not_played=0,
        differing=sum(row.differs_at is not None for row in rows),
        good={name: sum(row.grades.get(name, False) for row in rows) for name in names},
        steps_before=sum(row.steps_before for row in rows),
        steps_after=sum(row.steps_after for row in rows),
        cost_before_usd=_sum([row.cost_before_usd for row in rows]),
        cost_after_usd=_sum([row.cost_after_usd for row in rows]),
        data=rows,
    )


def _sum(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if len(known) == len(costs) else None
