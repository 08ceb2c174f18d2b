"""Rehearse an upgrade: migrate a copy of the database, replay recorded runs on it, and take over runs at work there.

The copy has no outside. Every step is done in this process, one after the other, and no hint leaves it; the model says
what was recorded, tools do nothing, hooks are left out, deliveries and jobs are never begun, files are those of an
empty folder that goes, and the settings have no secret but the keys that the rows are encrypted with.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from hermes_worker.broker.queue import build_home_client
from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.forks import ForkMatch, ForkTools
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.pricing import list_prices
from hermes_worker.core.principals import OPERATOR
from hermes_worker.core.run import ExitReason
from hermes_worker.core.run_events import RunEventName
from hermes_worker.features.forks.rehearsal_rows import (
    RehearsedRun,
    copy_database,
    digest_columns,
    list_completed,
    list_open,
    list_undone,
    load_works_with,
    stop_clocks,
)
from hermes_worker.features.forks.rehearsal_rules import (
    Difference,
    FactKind,
    Facts,
    GoingBack,
    build_verdict,
    compare_facts,
)
from hermes_worker.features.forks.rehearsal_work import (
    RecordedModel,
    build_models,
    digest_prompt,
    drive,
    read_reply,
    silence_parts,
)
from hermes_worker.features.forks.replay_rules import find_difference
from hermes_worker.features.forks.rows import load_replies
from hermes_worker.features.forks.service import ForkRequest, fork_run
from hermes_worker.settings import Settings
from hermes_worker.settings.kinds import Secret
from hermes_worker.store.build import build_database, build_sealer, build_sweep_policy
from hermes_worker.store.migrate import find_newest, find_schema_differences, load_revision, migrate
from hermes_worker.store.restore_detection import mark_epoch
from hermes_worker.store.sweep import Sweeper
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.driving import HintList
from hermes_worker.wiring import Client, build_client, build_step_parts, open_database
from hermes_worker.workspaces.opening import OpeningOptions, open_workspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_LEASE_S = 86_400.0
"""No thread renews the leases of the one worker that there is."""
_STEPS_MIN = 10_000
_STEPS_A_RUN = 200
_GOES_ON = "goes on"
_KNOWN = "known"
_BROKEN = frozenset({ExitReason.CORRUPT_STATE, ExitReason.INTERNAL_ERROR, ExitReason.STEP_QUARANTINED})
"""Ends of a run that no version means."""
_KEPT_VARIABLES = ("PATH", "LANG", "TZ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What is to be rehearsed."""

    runs_max: int = 200
    """Recorded runs that are replayed, the newest ones."""
    copy_to: str | None = None
    """URL of an empty database on PostgreSQL; ``None`` makes one on the same server."""
    before: Facts | None = None
    """What the version before recorded; ``None`` compares with what stands in the rows."""
    accepted: Collection[FactKind] = ()


def record_facts(settings: Settings, asked: Rehearsal) -> dict[str, Any]:
    """Record what this version does with a copy of the rows, for a later version to compare with. Raises
    ``ConfigurationError``, ``UnavailableError``."""

    def record(own: Settings) -> dict[str, Any]:
        with _open_stage(own, settings.home) as stage:
            return {"schema": find_newest(), "facts": stage.find_facts(asked.runs_max)[0]}

    return _use_copy(settings, asked, record)


def rehearse(settings: Settings, asked: Rehearsal) -> dict[str, Any]:
    """Rehearse the upgrade to this version, and return the verdict. Raises ``ConfigurationError``,
    ``UnavailableError``."""

    def judge(own: Settings) -> dict[str, Any]:
        going_back, differences = _migrate_copy(own, settings.home)
        counts = {"replayed": 0, "taken_over": 0, "prompts": 0}
        if not any(each.kind is FactKind.SCHEMA for each in differences):
            with _open_stage(own, settings.home) as stage:
                after, expected = stage.find_facts(asked.runs_max)
            differences += compare_facts(_merge(expected, asked.before), after)
            counts = {
                "replayed": len(after[FactKind.REPLAY]),
                "taken_over": len(expected[FactKind.RUN_AT_WORK]),
                "prompts": len(after[FactKind.PROMPT]),
            }
        return build_verdict(going_back, differences, asked.accepted, counts)

    return _use_copy(settings, asked, judge)


def _merge(expected: Facts, before: Facts | None) -> Facts:
    """Merge what the rows let expect with what the version before recorded, which knows better: also which runs never
    replay as they went."""
    if before is None:
        return expected
    expected = {**expected, FactKind.TOOL: {}}
    return {kind: {**expected.get(kind, {}), **before.get(kind, {})} for kind in FactKind}


def _migrate_copy(own: Settings, home: Path) -> tuple[GoingBack, list[Difference]]:
    """Migrate the copy, and list what that did to the rows and what is missing in the schema."""
    database = build_database(own, sealer=build_sealer(own), home=home)
    try:
        found, before = load_revision(database), digest_columns(database)
        if found is None:
            raise ConfigurationError("the database is empty; there is nothing to rehearse")
        try:
            migrate(database)
        except (HermesError, sa.exc.SQLAlchemyError) as error:
            failed = str(getattr(error, "orig", None) or error)
            there = Difference(kind=FactKind.SCHEMA, subject="migration", before="succeeds", after=f"fails: {failed}")
            return GoingBack(found=found, newest=find_newest(), works_with=found), [there]
        newest = load_revision(database) or found
        lacking = [
            Difference(kind=FactKind.SCHEMA, subject=each, before="as this version needs it", after="otherwise")
            for each in find_schema_differences(database)
        ]
        changed = compare_facts({FactKind.ROW: before}, {FactKind.ROW: digest_columns(database)})
        works_with = load_works_with(database, found)
        return GoingBack(found=found, newest=newest, works_with=works_with), [*lacking, *changed]
    finally:
        database.close()


def _use_copy(settings: Settings, asked: Rehearsal, use: Callable[[Settings], dict[str, Any]]) -> dict[str, Any]:
    source = build_database(settings, pool_size=2)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="hermes-rehearsal-") as folder,
            copy_database(source, Path(folder), asked.copy_to) as url,
        ):
            plugins = settings.home / "plugins"
            if plugins.is_dir():
                shutil.copytree(plugins, Path(folder) / "plugins", symlinks=True)
            return use(_cut_off(settings, Path(folder), url))
    finally:
        source.close()


def _cut_off(settings: Settings, home: Path, url: str) -> Settings:
    """Cut settings off from the outside: they name the copy, an empty home, no broker and no secret, but for the keys
    of the texts in the rows."""
    bare: Settings = _drop_secrets(settings)
    return replace(
        bare,
        home=home,
        database=replace(bare.database, url=url),
        encryption=settings.encryption,
        lease=replace(bare.lease, ttl_s=_LEASE_S),
        broker=replace(bare.broker, url=None),
        environ={name: settings.environ[name] for name in _KEPT_VARIABLES if name in settings.environ},
        faults="",
    )


def _drop_secrets(value: Any) -> Any:
    match value:
        case Secret():
            return None
        case tuple():
            return tuple(_drop_secrets(each) for each in value if not isinstance(each, Secret))
        case Mapping():
            return {name: each for name, each in value.items() if not isinstance(each, Secret)}
        case _ if is_dataclass(value) and not isinstance(value, type):
            return replace(value, **{each.name: _drop_secrets(getattr(value, each.name)) for each in fields(value)})
        case _:
            return value


@contextmanager
def _open_stage(own: Settings, home: Path) -> Iterator[_Stage]:
    """Open the copy at this version's schema, with all claims given up. ``home`` is that of the original, by which rows
    name files."""
    database = open_database(own, home=home)
    mark_epoch(database, are_workers_gone=True, may_have_worked=False)
    stop_clocks(database)
    hints, model = HintList(), RecordedModel()
    client = replace(build_client(own, database, build_home_client(lambda: None)), publisher=hints)  # type: ignore[arg-type]
    try:
        folder = own.home / "workspace"
        folder.mkdir()
        ref = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(folder))
        workspace = open_workspace(ref, OpeningOptions(base_env={}, hermes_home=str(own.home)))
        parts = silence_parts(build_step_parts(client, None, build_models(model)), workspace)
        yield _Stage(client=client, parts=parts, hints=hints, model=model)
    finally:
        client.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """The copy, and all that works on it."""

    client: Client
    parts: WorkerContext
    hints: HintList
    model: RecordedModel

    def find_facts(self, runs_max: int) -> tuple[Facts, Facts]:
        """Find what this version does, and what the rows let expect of it."""
        at_work = list_open(self.client.database)
        recorded = list_completed(self.client.database, runs_max)
        prompts = {
            f"{run.run_id} up to row {run.message_seq}": self._digest_prompt(run)
            for run in (*at_work, *recorded)
            if run.message_seq
        }
        expected: dict[str, Mapping[str, str]] = {
            FactKind.EXIT_REASON: {run.exit_reason: _KNOWN for run in recorded if run.exit_reason is not None},
            FactKind.TOOL: self._read_stored_tools((*recorded, *at_work)),
            FactKind.RUN_AT_WORK: {run.run_id: _GOES_ON for run in at_work},
            FactKind.REPLAY: {},
        }
        replays, requests, as_recorded = self._replay(recorded, at_work)
        expected[FactKind.REPLAY] = as_recorded
        facts: dict[str, Mapping[str, str]] = {
            FactKind.TOOL: self._list_tools(),
            FactKind.PRICE: self._list_prices(),
            FactKind.EXIT_REASON: {reason.value: _KNOWN for reason in ExitReason},
            FactKind.EVENT: {name.value: _KNOWN for name in RunEventName},
            FactKind.PROMPT: {**prompts, **requests},
            FactKind.REPLAY: replays,
            FactKind.RUN_AT_WORK: self._judge_ends(at_work),
        }
        return facts, expected

    def _digest_prompt(self, run: RehearsedRun) -> str:
        try:
            return digest_prompt(self.parts, self.model, run.session_pk, run.message_seq, run.model)
        except (HermesError, ValueError) as error:
            return f"cannot be built: {error}"

    def _list_tools(self) -> dict[str, str]:
        catalog = self.parts.catalog
        definitions = {json.loads(text)["function"]["name"]: text for text in catalog.render_definitions(catalog.names)}
        classes = {f"{name} (replay class)": catalog.get_spec(name).replay.value for name in catalog.names}
        return {**definitions, **classes}

    def _list_prices(self) -> dict[str, str]:
        listed = {f"{provider}:{model}": repr(price) for provider, model, price in list_prices()}
        return {**listed, **{f"own price {text}": _KNOWN for text in self.client.settings.model.prices}}

    def _read_stored_tools(self, newest_first: Sequence[RehearsedRun]) -> dict[str, str]:
        """Read the definitions of tools that conversations were begun with, the newest of each. Tools of servers and
        other sources are not this version's."""
        found: dict[str, str] = {}
        for pk in dict.fromkeys(run.session_pk for run in newest_first):
            tools = self.client.runs.load_session_context(pk).tools
            if self.parts.catalog.for_session(tools).names == self.parts.catalog.names:
                for each in json.loads(tools):
                    found.setdefault(each["function"]["name"], dump_canonical_json(each))
        return found

    def _replay(
        self, recorded: Sequence[RehearsedRun], at_work: Sequence[RehearsedRun]
    ) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
        """Replay recorded runs, offline, and go on with those at work. Returns how the replays ended, their requests,
        and how they should have ended by what was recorded."""
        database, forks, before = self.client.database, dict[str, str](), dict[str, list[dict[str, Any]]]()
        for run in recorded:
            before[run.run_id] = load_replies(database, run.run_id)
            asked = ForkRequest(run_id=run.run_id, step=0, tools=ForkTools.OFFLINE, match=ForkMatch.ORDER)
            try:
                created = fork_run(self.client, asked, OPERATOR)
            except HermesError:
                continue  # such as a run whose input is gone
            forks[run.run_id] = created.run_id
            self.model.scripts[created.run_id] = [read_reply(row) for row in before[run.run_id]]
            self.hints.send(created.hints)
        policy = replace(build_sweep_policy(self.client.settings), interval_s=0.0, resend_grace_s=0.0)
        steps_max = _STEPS_MIN + _STEPS_A_RUN * (len(recorded) + len(at_work))
        drive(self.parts, self.hints, Sweeper(database, policy), steps_max)
        replays, requests, as_recorded = {}, {}, {}
        for run in recorded:
            if (fork := forks.get(run.run_id)) is None:
                continue
            replies = load_replies(database, fork)
            view = self.client.views.load_run(fork)
            replays[run.run_id] = _describe_end(view.exit_reason, find_difference(before[run.run_id], replies))
            requests[f"requests of {run.run_id}"] = self.model.digest_sent(fork)
            if len(before[run.run_id]) == run.iteration:  # nothing was asked for again, or summarised
                as_recorded[run.run_id] = _describe_end(run.exit_reason, None)
        return replays, requests, as_recorded

    def _judge_ends(self, at_work: Sequence[RehearsedRun]) -> dict[str, str]:
        """Judge what became of the runs that were at work: whether each goes on, and how it ended or waits."""
        found, undone = {}, list_undone(self.client.database)
        for run in at_work:
            view = self.client.views.load_run(run.run_id)
            is_broken = view.exit_reason in _BROKEN
            end = view.exit_reason or view.status.value
            is_lost = run.run_id in undone
            found[run.run_id] = f"is lost: {end}" if is_lost else f"breaks: {end}" if is_broken else _GOES_ON
            found[f"{run.run_id} from {run.status} at {run.iteration}"] = end
        return found


def _describe_end(exit_reason: str | None, differs_at: int | None) -> str:
    return f"{exit_reason}, {'no step differs' if differs_at is None else f'step {differs_at} differs'}"
