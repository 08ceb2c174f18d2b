"""The installation's rules for calls that need a person's permission, and the store that their questions stand in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.safety.approvals import ApprovalMode, ApprovalPolicy, UnattendedMode
from hermes_worker.store.runs.waits import ApprovalTerms


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """The installation's rules for dangerous commands."""

    mode: ApprovalMode = ApprovalMode.MANUAL
    timeout_s: float | None = 60.0
    """How long a question about a command stays open, in seconds; ``None`` for as long as the run may take."""
    deny: tuple[str, ...] = ()
    allowed: frozenset[str] = frozenset()
    by_source: Mapping[str, UnattendedMode] = field(default_factory=dict)
    """How questions of runs from each source are treated; a source that is not listed is treated as ``api``."""

    def build_session_policy(self, session: Mapping[str, Any]) -> ApprovalPolicy:
        """The policy of a session, before the origin of the run is looked up."""
        kept: Sequence[str] = session.get(APPROVED_KEY) or ()
        return ApprovalPolicy(mode=self.mode, deny=self.deny, allowed=self.allowed | frozenset(kept))

    def narrow_policy(self, policy: ApprovalPolicy, terms: ApprovalTerms) -> ApprovalPolicy:
        """Return ``policy`` narrowed by what the rows say about the run."""
        usual = self.by_source.get(terms.source, self.by_source.get("api", UnattendedMode.ASK))
        unattended = UnattendedMode(terms.approvals) if terms.approvals else usual
        return replace(policy, allowed=policy.allowed | terms.allowed, unattended=unattended)
