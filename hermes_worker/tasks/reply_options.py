"""How a run that a chat began is answered there, as its row says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_replies import find_reply_target
from hermes_worker.core.chat_signs import ChatSigns, read_signs
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.outbox.deliveries import DeliveryClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyOptions:
    """A run's wishes about its answer in a chat; all empty for a delivery without a run."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    source: str | None = None

    @classmethod
    def from_claim(cls, claim: DeliveryClaim) -> ReplyOptions:
        """Read the wishes from the run's request."""
        if claim.spec is None:
            return cls()
        spec = RunSpec.from_json(claim.spec)
        return cls(metadata=spec.metadata, source=spec.source)

    @property
    def signs(self) -> ChatSigns:
        """The signs that the chat is shown while the run is at work."""
        return read_signs(self.metadata, self.source)

    def find_message_replied_to(self, target: Target, *, part: int) -> str:
        """The platform's id of the message that the part replies to; empty for none: no chat began the run, or the part
        goes elsewhere.
        """
        return find_reply_target(self.metadata, self.source, sender=target.sender, chat=target.chat, part=part)
