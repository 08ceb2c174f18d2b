"""How many bytes a workspace may hold. While a command runs, the command's keeper watches the limit."""

from __future__ import annotations

import threading
import time
from typing import Final

from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.sandbox.helper.space import FILE_BYTES_MIN, Content, Walk

_PATIENCE_S: Final = 1.0
"""How many seconds one walk may take. What was found until then counts; the keeper's walk goes on to the end."""
_KNOWN_FOR_S: Final = 5.0
_SLACK_BYTES: Final = 1024**2
"""A command in a workspace that is full already may use this much more, so that it can tidy up."""


class WorkspaceQuota:
    """The size of one workspace, and its limit. Thread-safe."""

    def __init__(self, root: str, bytes_max: int) -> None:
        self._root = root
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._content: Content | None = None
        self._known_at = float("-inf")

    def require_room(self, size: int) -> None:
        """Count a file of ``size`` bytes that is about to be written. Raises ``WorkspaceError``."""
        with self._lock:
            taken = max(size, FILE_BYTES_MIN)
            content = self._get_recent_content()
            if content.bytes + taken > self._bytes_max:
                content = self._measure_content()
            if content.bytes + taken > self._bytes_max:
                raise WorkspaceError(
                    f"the workspace holds {content.bytes // 1024**2} MB, and may hold {self._bytes_max // 1024**2} MB "
                    "(a file counts as 16 KB at least); delete what is not needed, or ask an operator to raise "
                    "terminal.workspace_mb_max"
                )
            content.bytes += taken

    def compute_allowed_bytes(self) -> int:
        """Up to how many bytes a command that begins now may fill the workspace."""
        with self._lock:
            used = self._get_recent_content().bytes
            return self._bytes_max if used <= self._bytes_max else used + _SLACK_BYTES

    def _get_recent_content(self) -> Content:
        """The size of the workspace; walks only when it has been a while, or when enough was written to the disk to
        matter.
        """
        content = self._content
        is_recent = time.monotonic() < self._known_at + _KNOWN_FOR_S
        if content is None or not is_recent or content.may_have_outgrown(self._bytes_max):
            return self._measure_content()
        return content

    def _measure_content(self) -> Content:
        walk = Walk(self._root)
        walk.finish(time.monotonic() + _PATIENCE_S)
        self._content, self._known_at = Content(self._root, walk.bytes), time.monotonic()
        return self._content
