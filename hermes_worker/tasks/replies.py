"""What a run that a chat began says of how it is answered there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_replies import replied_to
from hermes_worker.core.chat_signs import ChatSigns, signs_in
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.outbox.deliveries import DeliveryClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyWishes:
    """Of the run that a delivery belongs to; of none, nothing."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None

    @classmethod
    def of(cls, claim: DeliveryClaim) -> ReplyWishes:
        """Reads what the run was asked."""
        if claim.spec is None:
            return cls()
        spec = RunSpec.from_json(claim.spec)
        return cls(metadata=spec.metadata, source=spec.source)

    @property
    def signs(self) -> ChatSigns:
        """What the chat is shown while the run is at work."""
        return signs_in(self.metadata, self.source)

    def message_replied_to(self, target: Target, *, part: int) -> str:
        """The platform's id of it; empty for none: no chat began the run, or the part goes elsewhere."""
        return replied_to(self.metadata, self.source, sender=target.sender, chat=target.chat, part=part)
