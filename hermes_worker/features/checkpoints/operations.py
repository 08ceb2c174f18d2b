"""The operations of the API about checkpoints of workspaces."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_worker.features.checkpoints.schema import CheckpointDiffObject, CheckpointList, RestoreObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader


def checkpoints(run_id: str) -> ApiRequest[CheckpointList]:
    """The checkpoints of the run's workspace, the newest first."""
    return build_get("/v1/runs/{run_id}/checkpoints", make_reader(CheckpointList), {"run_id": run_id})


def diff(run_id: str, checkpoint_id: str | None = None) -> ApiRequest[CheckpointDiffObject]:
    """How the files differ from a checkpoint; without one, from what they were before the run changed any."""
    read = make_reader(CheckpointDiffObject)
    return build_get("/v1/runs/{run_id}/diff", read, {"run_id": run_id}, checkpoint_id=checkpoint_id)


def restore(run_id: str, checkpoint_id: str, *, files: Sequence[str] = ()) -> ApiRequest[RestoreObject]:
    """Restore a checkpoint, or only the ``files`` named. A checkpoint of the current files is made first."""
    body = {"checkpoint_id": checkpoint_id, **({"files": list(files)} if files else {})}
    return build_post("/v1/runs/{run_id}/restore", make_reader(RestoreObject), {"run_id": run_id}, body=body)
