"""What the verbs about runs need, as typed calls, and how a database answers them. ``remote_backend`` asks a server."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from hermes_worker.cli.family import FamilyWatch
from hermes_worker.cli.follow import Notice, follow
from hermes_worker.cli.options import chosen_tenant, this_user
from hermes_worker.cli.records import Records, open_records
from hermes_worker.cli.server import server_client
from hermes_worker.core.explaining import Explanation
from hermes_worker.core.principals import DEFAULT_TENANT, Principal
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.safety.approvals import Choice
from hermes_worker.services import answering
from hermes_worker.services.checkpoints import (
    CheckpointDiff,
    CheckpointView,
    RestoreOutcome,
    RunCheckpoints,
    checkpoints_of,
)
from hermes_worker.services.results import TurnResult, training_sample, turn_result
from hermes_worker.services.sheets import RunSheet, sheet_of
from hermes_worker.services.shown import CallLine, CallTexts, OpenLine, call_line, call_texts, open_line
from hermes_worker.store.artifacts.listing import Artifacts, ArtifactView, RunArtifacts
from hermes_worker.store.hooks.calls import HookCalls, HookCallView
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.ledger import Ledger
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.tree_shapes import TreeNode, read_tree
from hermes_worker.store.runs.views import RunView
from hermes_worker.store.runs.waits import Waits
from hermes_worker.stream.sse import WireEvent

PAGE = 100
_LOOK_EVERY_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class StopOutcome:
    """What became of a stop."""

    status: str
    caused: Sequence[str]
    """Runs that were stopped with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeLine:
    """A run of a tree. Times are epoch seconds."""

    run_id: str
    parent_run_id: str | None
    depth: int
    child_index: int | None
    parent_call: str | None
    background: bool
    status: RunStatus
    model: str
    created_at: float
    finished_at: float | None
    cost_usd: float | None
    output: str | None
    error: str | None


class RunBackend(Protocol):
    """Runs of one tenant. Each call raises ``HermesError``s that say what is wrong."""

    source: str
    """Whose names of sessions are meant: ``cli`` here, ``api`` over a server."""

    def run_id(self, written: str) -> str:
        """The id that is meant by an id or by its beginning."""

    def runs(self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE) -> Iterator[RunView]:
        """The runs that ``said`` names, which are fields of ``RunFilter``, newest first; ``before`` a run."""

    def sheet(self, run_id: str) -> RunSheet: ...
    def idle_notice(self, run_id: str) -> str | None: ...
    def status(self, run_id: str) -> RunStatus: ...
    def result(self, run_id: str) -> TurnResult: ...
    def sample(self, run_id: str) -> dict[str, Any]: ...
    def hook_calls(self, run_id: str, *, limit: int) -> Sequence[HookCallView]: ...
    def artifacts(self, run_id: str) -> RunArtifacts: ...
    def artifact(self, found: ArtifactView) -> bytes:
        """The bytes of a file that ``artifacts`` named."""

    def explain(self, run_id: str) -> Explanation: ...
    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]: ...
    def stop(self, run_id: str) -> StopOutcome: ...
    def pause(self, run_id: str) -> RunStatus: ...
    def resume(self, run_id: str) -> RunStatus: ...
    def steer(self, run_id: str, text: str) -> None: ...
    def approve(self, run_id: str, choice: str, *, reason: str | None, wait_id: int | None) -> None: ...
    def answer(self, run_id: str, text: str, *, wait_id: int | None) -> None: ...
    def retry(self, run_id: str) -> str: ...
    def tree(self, run_id: str) -> tuple[Sequence[TreeLine], int]:
        """The oldest runs of the tree that a run is in, and how many it has."""

    def calls(self, run_id: str, *, limit: int) -> Sequence[CallLine]: ...
    def call(self, run_id: str, iteration: int, position: int) -> tuple[CallLine, CallTexts]: ...
    def questions(self, *, kind: WaitKind | None, all_tenants: bool, limit: int) -> Sequence[OpenLine]:
        """What waits for a person, the oldest first."""

    def checkpoints(self, run_id: str) -> Sequence[CheckpointView]: ...
    def diff(self, run_id: str, checkpoint: str | None) -> CheckpointDiff: ...
    def restore(self, run_id: str, checkpoint: str, paths: Sequence[str]) -> RestoreOutcome: ...
    def join(self, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> Mapping[str, RunStatus]:
        """How those have ended that have, once all have, or ``is_any`` of them, or the time is over."""


def open_backend(home: Path | None, *, names_tenant: bool = False) -> RunBackend:
    """The server that was chosen, or the database of a home. Over a server ``--tenant`` is refused but for a command
    that ``names_tenant`` and only lists runs. Raises ``ConfigurationError``, ``UnavailableError``."""
    client = server_client(names_tenant=names_tenant)
    if client is None:
        return LocalBackend(open_records(home))
    from hermes_worker.cli.remote_backend import RemoteBackend  # only where a server is asked

    tenant = chosen_tenant()
    return RemoteBackend(client, tenant=None if tenant == DEFAULT_TENANT else tenant)


class LocalBackend:
    """Asks a database."""

    source = "cli"

    def __init__(self, records: Records) -> None:
        self._records = records

    def run_id(self, written: str) -> str:
        return self._records.run_id(written)

    def runs(self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE) -> Iterator[RunView]:
        wanted = RunFilter(tenant=self._records.tenant, source=self.source, **said)
        read = partial(Listing(self._records.database).page, wanted, limit=page)
        found = read(before=before)
        while True:
            yield from found.views
            if found.below is None:
                return
            found = read(below=found.below)

    def sheet(self, run_id: str) -> RunSheet:
        return sheet_of(self._records.database, run_id)

    def idle_notice(self, run_id: str) -> str | None:
        return self._records.idle_notice(run_id)

    def status(self, run_id: str) -> RunStatus:
        return self._records.views.run(run_id).status

    def result(self, run_id: str) -> TurnResult:
        return turn_result(self._records.views, run_id)

    def sample(self, run_id: str) -> dict[str, Any]:
        return training_sample(self._records.views, run_id)

    def hook_calls(self, run_id: str, *, limit: int) -> Sequence[HookCallView]:
        return HookCalls(self._records.database).list(run_id=run_id, limit=limit)

    def artifacts(self, run_id: str) -> RunArtifacts:
        return Artifacts(self._records.database).of(run_id)

    def artifact(self, found: ArtifactView) -> bytes:
        return Artifacts(self._records.database).content(found)

    def explain(self, run_id: str) -> Explanation:
        return Explanations(self._records.database).of(run_id)

    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]:
        news = FamilyWatch(self._records.families, run_id).news
        return follow(self._records.sources, run_id, on_idle=partial(self._records.notice, run_id), news=news)

    def stop(self, run_id: str) -> StopOutcome:
        stopped = self._records.runs.stop_tree(run_id, by=this_user())
        self._records.tell_stopped(stopped.run_ids, stopped.hints)
        return StopOutcome(status=stopped.status.value, caused=stopped.caused)

    def pause(self, run_id: str) -> RunStatus:
        return Control(self._records.database).pause(run_id, by=this_user())

    def resume(self, run_id: str) -> RunStatus:
        status, hints = Control(self._records.database).resume(run_id, by=this_user())
        self._records.tell_workers("watch", run_id, hints)
        return status

    def steer(self, run_id: str, text: str) -> None:
        Control(self._records.database).steer(run_id, text, by=this_user())

    def approve(self, run_id: str, choice: str, *, reason: str | None, wait_id: int | None) -> None:
        waits = Waits(self._records.database)
        hints = answering.approve(waits, run_id, Choice(choice), by=this_user(), reason=reason, wait_id=wait_id)
        self._records.tell_workers("watch", run_id, hints)

    def answer(self, run_id: str, text: str, *, wait_id: int | None) -> None:
        hints = answering.reply(Waits(self._records.database), run_id, text, by=this_user(), wait_id=wait_id)
        self._records.tell_workers("watch", run_id, hints)

    def retry(self, run_id: str) -> str:
        from hermes_worker.services import batches
        from hermes_worker.services.submission import announce
        from hermes_worker.wiring import open_client as open_submitter

        with closing(open_submitter(self._records.settings)) as client:
            principal = Principal(tenant=self._records.tenant, name=this_user())
            created = batches.retry(client, run_id, principal)
            announce(client, created)
        return created.run_id

    def tree(self, run_id: str) -> tuple[Sequence[TreeLine], int]:
        shape = read_tree(self._records.database, run_id)
        return [_kept_line(node) for node in shape.nodes], shape.total

    def calls(self, run_id: str, *, limit: int) -> Sequence[CallLine]:
        return [call_line(entry) for entry in Ledger(self._records.database).page(run_id, limit=limit)]

    def call(self, run_id: str, iteration: int, position: int) -> tuple[CallLine, CallTexts]:
        found = Ledger(self._records.database).call(run_id, iteration, position)
        return call_line(found.entry), call_texts(found)

    def questions(self, *, kind: WaitKind | None, all_tenants: bool, limit: int) -> Sequence[OpenLine]:
        tenant = None if all_tenants else self._records.tenant
        return [open_line(view) for view in Waits(self._records.database).open(tenant=tenant, limit=limit, kind=kind)]

    def checkpoints(self, run_id: str) -> Sequence[CheckpointView]:
        return self._checkpoints().every(run_id)

    def diff(self, run_id: str, checkpoint: str | None) -> CheckpointDiff:
        return self._checkpoints().diff(run_id, checkpoint)

    def restore(self, run_id: str, checkpoint: str, paths: Sequence[str]) -> RestoreOutcome:
        return self._checkpoints().restore(run_id, checkpoint, paths)

    def _checkpoints(self) -> RunCheckpoints:
        return checkpoints_of(self._records.database, self._records.settings)

    def join(self, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> Mapping[str, RunStatus]:
        give_up_at = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            ends = self._records.views.ends(run_ids)
            is_done = bool(ends) if is_any else len(ends) == len(set(run_ids))
            if is_done or (give_up_at is not None and time.monotonic() >= give_up_at):
                return {run_id: end.status for run_id, end in ends.items()}
            time.sleep(_LOOK_EVERY_S)


def _kept_line(node: TreeNode) -> TreeLine:
    run = node.run
    return TreeLine(
        run_id=run.run_id,
        parent_run_id=node.parent_run_id,
        depth=node.depth,
        child_index=node.child_index,
        parent_call=None if node.call is None else f"{node.call[0]}.{node.call[1]}",
        background=node.is_background,
        status=run.status,
        model=run.model,
        created_at=run.created_at,
        finished_at=run.finished_at,
        cost_usd=None if run.cost_usd is None else float(run.cost_usd),
        output=run.output,
        error=run.error,
    )
