"""What a run that a chat began says of how it is answered there."""

from __future__ import annotations

from hermes_worker.channels.targets import Target
from hermes_worker.core.chat_replies import replied_to
from hermes_worker.core.chat_signs import ChatSigns, signs_in
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.outbox.deliveries import DeliveryClaim


def signs_for(claim: DeliveryClaim) -> ChatSigns:
    """What the chat is shown while the run is at work."""
    if claim.spec is None:
        return ChatSigns()
    spec = RunSpec.from_json(claim.spec)
    return signs_in(spec.metadata, spec.source)


def message_replied_to(claim: DeliveryClaim, target: Target, *, part: int) -> str:
    """The platform's id of it; empty for none: the delivery is of no run that a chat began, or goes elsewhere."""
    if claim.spec is None:
        return ""
    spec = RunSpec.from_json(claim.spec)
    return replied_to(spec.metadata, spec.source, sender=target.sender, chat=target.chat, part=part)
