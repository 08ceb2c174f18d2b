"""Checkpoints, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from typing import Literal

from hermes_worker.resource import Resource


class CheckpointObject(Resource):
    """The state of a workspace's files before a change."""

    object: Literal["hermes.checkpoint"] = "hermes.checkpoint"
    id: str
    created_at: float
    run_id: str
    """The run that was about to change files, or whose files were about to be put back."""
    iteration: int
    """0 for one that a restore made."""
    tool: str
    files: int
    left_out: int
    """Files that are too large, or that could not be read."""


class CheckpointList(Resource):
    """All checkpoints of a run's workspace, the newest first. Other runs may work there, too."""

    object: Literal["list"] = "list"
    run_id: str
    data: list[CheckpointObject]


class FileChangeObject(Resource):
    """A file that differs."""

    path: str
    change: str
    """`added`, `removed` or `changed`, since the checkpoint."""


class CheckpointDiffObject(Resource):
    """The difference between a checkpoint and the files as they are."""

    object: Literal["hermes.checkpoint_diff"] = "hermes.checkpoint_diff"
    checkpoint_id: str
    files: list[FileChangeObject]
    """The first of them, by path."""
    files_total: int
    text: str
    """A unified diff without secrets. It was written by an agent: show it as text."""
    is_cut: bool


class RestoreObject(Resource):
    """The result of a restore."""

    object: Literal["hermes.restore"] = "hermes.restore"
    checkpoint_id: str
    before: str
    """The checkpoint of what was there: restore that one to undo it."""
    written: list[str]
    removed: list[str]
    failed: list[str]
    """`path: why`."""
