"""Settings that became constants, because nobody had a reason to set them. Pure.

For one release a value for one of them is accepted wherever it may stand: it changes nothing, and a note says so. The
next release does not know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class RetiredSetting(NamedTuple):
    """A setting that became a constant."""

    key: str
    variables: tuple[str, ...]
    constant: str
    """Its only value by now, as it was written in the environment."""

    @property
    def explanation(self) -> str:
        """The note for somebody who still sets it, without the subject of the sentence."""
        return f"is no setting any more: it is always {self.constant}"


_TABLE = (
    RetiredSetting("artifacts.url_s", ("HERMES_ARTIFACT_URL_S",), "900"),
    RetiredSetting("chats.file_s", ("HERMES_GATEWAY_FILE_S",), "90"),
    RetiredSetting("delegation.max_tasks", ("HERMES_MAX_TASKS",), "1000"),
    RetiredSetting("flower.user", ("HERMES_FLOWER_USER",), "hermes"),
    RetiredSetting("lease.attempts_max", ("HERMES_ATTEMPTS_MAX",), "3"),
    RetiredSetting("memory.review_tokens_max", ("HERMES_REVIEW_TOKENS",), "200000"),
    RetiredSetting("model.closed_after_runs", ("HERMES_KEY_CLOSED_AFTER_RUNS",), "3"),
)
RETIRED: Mapping[str, RetiredSetting] = MappingProxyType({each.key: each for each in _TABLE})
"""Every setting that became a constant, by key."""
