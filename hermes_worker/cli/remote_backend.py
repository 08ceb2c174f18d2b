"""How a server answers the verbs about runs: over the HTTP API, with the client that other programs use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from hermes_worker.cli.follow import Notice
from hermes_worker.cli.run_backend import PAGE, StopOutcome, TreeLine
from hermes_worker.cli.server import read
from hermes_worker.client import HermesClient, operations
from hermes_worker.client.documents import ArtifactDocument
from hermes_worker.client.exchange import ApiRequest
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.explaining import Because, Explanation
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.services.checkpoints import CheckpointDiff, CheckpointView, RestoreOutcome
from hermes_worker.services.results import TurnResult
from hermes_worker.services.sheets import RunSheet
from hermes_worker.services.shown import CallLine, CallTexts, OpenLine
from hermes_worker.store.artifacts.gatherings import LeftOutFile
from hermes_worker.store.artifacts.listing import ArtifactsState, ArtifactView, RunArtifacts
from hermes_worker.store.hooks.calls import HookCallView
from hermes_worker.store.runs.views import RunView
from hermes_worker.store.short_ids import AmbiguousId
from hermes_worker.stream.sse import WireEvent

_PREFIX = "run_"
_ID_CHARS = len(_PREFIX) + 32
_LOOKED_THROUGH = 1_000
"""Of the newest runs, for one that begins as was written."""
_PARAMS = {
    "statuses": "status",
    "tags": "tag",
    "origin": "source",
    "parent": "parent_run_id",
    "cost_usd_min": "min_cost_usd",
    "cost_usd_max": "max_cost_usd",
}
"""Where the API calls a filter otherwise."""


def _file_of(told: ArtifactDocument) -> ArtifactView:
    return ArtifactView(
        artifact_id=told["id"],
        tenant="",
        path=told["path"],
        sha256=told["sha256"],
        size=told["size"],
        media_type=told["media_type"],
        modified_at=told["modified_at"],
        created_at=told["created_at"],
        blob_hash="",
    )


def _tree_fields(node: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``TreeLine``."""
    return {
        **{name: node[name] for name in _OF_NODE},
        **{name: node["run"].get(name) for name in _OF_RUN},
        "cost_usd": node["run"].get("estimated_cost_usd"),
    }


_OF_NODE = ("parent_run_id", "depth", "child_index", "parent_call", "background")
_OF_RUN = ("run_id", "status", "model", "created_at", "finished_at", "output", "error")


class RemoteBackend:
    """Asks a server."""

    source = "api"

    def __init__(self, client: HermesClient, *, tenant: str | None = None) -> None:
        self._client = client
        self._of_tenant = {} if tenant is None else {"tenant": tenant}
        self._files: Mapping[str, ArtifactDocument] = {}

    def run_id(self, written: str) -> str:
        digits = written.strip().removeprefix(_PREFIX).lower()
        if len(written) == _ID_CHARS or not digits or not set(digits) <= set("0123456789abcdef"):
            return written
        begins = f"{_PREFIX}{digits}"
        newest = (view.run_id for _, view in zip(range(_LOOKED_THROUGH), self._views({}), strict=False))
        found = [run_id for run_id in newest if run_id.startswith(begins)]
        if len(found) > 1:
            raise AmbiguousId(f"{written!r} is the beginning of several ids: {', '.join(found[:5])}; write more of it")
        if not found:
            raise ConfigurationError(
                f"none of the newest {_LOOKED_THROUGH:,} runs begins with {written[:80]!r}; write the whole id"
            )
        return found[0]

    def _views(self, params: Mapping[str, Any]) -> Iterator[RunView]:
        request: ApiRequest[operations.Portion[Any]] | None = operations.sheets(**self._of_tenant, **params)
        while request is not None:
            page = self._client.send(request)
            yield from read(list[RunView], page.items)
            request = page.following

    def runs(self, said: Mapping[str, Any], *, before: str | None = None, page: int = PAGE) -> Iterator[RunView]:
        params = {_PARAMS.get(name, name): value for name, value in said.items() if value not in (None, ())}
        return self._views({**params, "limit": min(page, PAGE), **({"before": before} if before else {})})

    def sheet(self, run_id: str) -> RunSheet:
        sheet: RunSheet = read(RunSheet, self._client.sheet(run_id))
        return sheet

    def idle_notice(self, run_id: str) -> str | None:
        return None  # who works there is the operators' business

    def status(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.run(run_id)["status"])

    def result(self, run_id: str) -> TurnResult:
        result: TurnResult = read(TurnResult, self._client.result(run_id))
        return result

    def sample(self, run_id: str) -> dict[str, Any]:
        return self._client.trajectory(run_id)

    def hook_calls(self, run_id: str, *, limit: int) -> Sequence[HookCallView]:
        found: Sequence[HookCallView] = read(list[HookCallView], self._client.hook_calls(run_id, limit=limit))
        return found

    def artifacts(self, run_id: str) -> RunArtifacts:
        told = self._client.artifacts(run_id)
        self._files = {each["id"]: each for each in told["data"]}
        return RunArtifacts(
            state=read(ArtifactsState, told["state"]),
            reason=told.get("reason"),
            files=[_file_of(each) for each in told["data"]],
            gathered=told["gathered"],
            left_out=told["left_out_total"],
            left_out_named=[LeftOutFile(path=each["path"], reason=each["reason"]) for each in told["left_out"]],
        )

    def artifact(self, found: ArtifactView) -> bytes:
        return self._client.artifact(self._files[found.artifact_id])

    def explain(self, run_id: str) -> Explanation:
        found = self._client.explain(run_id)
        return Explanation(
            because=Because(found["because"]),
            text=found["text"],
            since=found.get("since"),
            until=found.get("until"),
            facts=found["facts"],
        )

    def follow(self, run_id: str) -> Iterator[WireEvent | Notice]:
        for told in self._client.told_events(run_id):
            fields = dict(told.document)
            name, at = str(fields.pop("event", "")), fields.pop("timestamp", 0.0)
            fields.pop("run_id", None)
            yield WireEvent(id=told.id, name=name, at=float(at), fields=fields)

    def stop(self, run_id: str) -> StopOutcome:
        stopped = self._client.stop(run_id)
        return StopOutcome(status=stopped["status"], caused=stopped.get("caused", []))

    def pause(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.pause(run_id)["status"])

    def resume(self, run_id: str) -> RunStatus:
        return RunStatus(self._client.resume(run_id)["status"])

    def steer(self, run_id: str, text: str) -> None:
        self._client.steer(run_id, text)

    def approve(self, run_id: str, choice: str, *, reason: str | None, wait_id: int | None) -> None:
        self._client.approve(run_id, choice, reason=reason, wait_id=wait_id)

    def answer(self, run_id: str, text: str, *, wait_id: int | None) -> None:
        self._client.answer(run_id, text, wait_id=wait_id)

    def retry(self, run_id: str) -> str:
        return self._client.retry(run_id)

    def tree(self, run_id: str) -> tuple[Sequence[TreeLine], int]:
        told = self._client.tree(run_id)
        found: list[TreeLine] = read(list[TreeLine], [_tree_fields(node) for node in told["data"]])
        return found, int(told["total"])

    def calls(self, run_id: str, *, limit: int) -> Sequence[CallLine]:
        found: list[CallLine] = read(list[CallLine], list(islice(self._client.calls(run_id), limit)))
        return found

    def call(self, run_id: str, iteration: int, position: int) -> tuple[CallLine, CallTexts]:
        told = self._client.call(run_id, f"{iteration}.{position}")
        return read(CallLine, told), read(CallTexts, told)

    def questions(self, *, kind: WaitKind | None, all_tenants: bool, limit: int) -> Sequence[OpenLine]:
        wanted = None if kind is None else kind.value
        told = self._client.approvals(kind=wanted, limit=limit, all_tenants=all_tenants)
        found: list[OpenLine] = read(list[OpenLine], told)
        return found

    def checkpoints(self, run_id: str) -> Sequence[CheckpointView]:
        found = [
            {
                **{name: value for name, value in each.items() if name not in ("object", "id")},
                "checkpoint_id": each["id"],
            }
            for each in self._client.checkpoints(run_id)["data"]
        ]
        views: list[CheckpointView] = read(list[CheckpointView], found)
        return views

    def diff(self, run_id: str, checkpoint: str | None) -> CheckpointDiff:
        found = dict(self._client.diff(run_id, checkpoint))
        found.pop("object", None)
        told: CheckpointDiff = read(CheckpointDiff, found)
        return told

    def restore(self, run_id: str, checkpoint: str, paths: Sequence[str]) -> RestoreOutcome:
        found = dict(self._client.restore(run_id, checkpoint, files=paths))
        found.pop("object", None)
        told: RestoreOutcome = read(RestoreOutcome, found)
        return told

    def join(self, run_ids: Sequence[str], *, is_any: bool, timeout_s: float | None) -> Mapping[str, RunStatus]:
        found = self._client.join(run_ids, mode="any" if is_any else "all", timeout_s=timeout_s)["runs"]
        return {end["run_id"]: RunStatus(str(end.get("status"))) for end in found if end["ended"]}
