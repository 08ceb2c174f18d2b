"""A turn of a chat's conversation as the submission of a run: who asks, what the agent is told of the chat, and how the
chat is answered."""

from __future__ import annotations

from hermes_worker.channels.catalog import describe_display, list_platforms
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.chat_context import build_context_block
from hermes_worker.core.chat_replies import ReplyMode, build_reply_metadata
from hermes_worker.core.chat_signs import ChatSigns, choose_progress_mode
from hermes_worker.core.gateway import GUEST_TOOLSETS
from hermes_worker.core.inbound import InboundMessage
from hermes_worker.core.inbound_decision import StartChatRun
from hermes_worker.core.personal_ids import hides_ids
from hermes_worker.core.principals import Principal
from hermes_worker.core.session_keys import is_shared_by_members
from hermes_worker.core.spec import Multitask
from hermes_worker.gateway.received import ReceivedEvent
from hermes_worker.safety.approvals import UnattendedMode
from hermes_worker.services.submission import Submission
from hermes_worker.settings import GatewaySettings, Settings


def build_submission(settings: Settings, received: ReceivedEvent, role: ChatRole, start: StartChatRun) -> Submission:
    """Build the submission of a turn that was written by somebody with ``role``."""
    is_guest, said = role is ChatRole.GUEST, settings.gateway
    return Submission(
        input=start.text,
        instructions=_describe_chat(said, received, is_guest=is_guest),
        session_id=start.session,
        principal=Principal(tenant=received.owner.tenant, name=received.principal, scopes=frozenset()),
        source=role.source,
        model=start.model,
        toolsets=GUEST_TOOLSETS if is_guest else None,
        approvals=UnattendedMode.DENY.value if is_guest else None,
        multitask=Multitask(start.multitask),
        deliver=received.target,
        compress=start.compress,
        files=start.files,
        delay_s=start.delay_s,
        metadata={
            "platform": received.platform,
            "chat": received.event.chat.id,
            **_build_answer_metadata(said, received),
        },
    )


def choose_signs(said: GatewaySettings, platform: str) -> ChatSigns:
    """Choose what is shown in a chat while the run is at work, of what the platform can show."""
    sending = list_platforms()[platform].sending
    if sending is None:
        return ChatSigns(has_text=False)
    return ChatSigns(
        has_text=said.streams and sending.edits,
        has_typing=said.types and sending.typing is not None,
        progress=choose_progress_mode(said.tool_progress, said.tool_progress_modes, platform),
    )


def _build_answer_metadata(said: GatewaySettings, received: ReceivedEvent) -> dict[str, str]:
    """Build the metadata about how the chat is answered: as a reply to what somebody wrote (not to a command, whose id
    is that of no message), and with what it sees until then."""
    event, signs = received.event, choose_signs(said, received.platform)
    sent = (event.quoted_as or event.message_id) if isinstance(event, InboundMessage) else ""
    shown = signs.metadata if signs.shows_something else {}
    return build_reply_metadata(received.sender, sent, ReplyMode(said.reply_to)) | shown


def _describe_chat(said: GatewaySettings, received: ReceivedEvent, *, is_guest: bool) -> str:
    """Describe the chat to the agent, for a session that begins with this message."""
    return build_context_block(
        received.platform,
        received.event.chat,
        received.event.sender,
        is_shared=is_shared_by_members(received.origin),
        hides_ids=hides_ids(received.platform, is_wanted=said.redacts_ids),
        is_guest=is_guest,
        display=describe_display(received.platform),
    )
