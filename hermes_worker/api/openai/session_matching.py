"""Which session a chat completion belongs to.

A client of this kind keeps the conversation itself and sends all of it each time. So that the agent has its workspace
and its own memory of what it did, a request continues the session in which exactly that was said, if there is one. The
name of such a session is made from how the conversation begins; conversations that begin alike are told apart by what
was said in them. A session that is at work, or in which more was said meanwhile, is left alone: the request then starts
a new session from the history that it brought.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from hermes_worker.api.context import ApiContext
from hermes_worker.api.messages import Conversation
from hermes_worker.api.openai.chat_messages import is_same_conversation
from hermes_worker.core.client_tools import ClientTool
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import Principal
from hermes_worker.services.submission import Submission, accept
from hermes_worker.store.runs.conversations import ConversationEnd, Conversations
from hermes_worker.store.runs.runs import Created, SessionMoved

ALIKE_MAX = 8
"""Most sessions of one caller that begin alike and are kept apart; further ones get no name and are not found again."""


def accept_conversation(context: ApiContext, submission: Submission, said: Conversation) -> Created:
    """Commit a run in the session that the conversation belongs to. Raises what ``submission.submit`` raises, such as
    ``InvalidSubmission``."""
    names = _list_names(submission.principal, said, submission.client_tools)
    conversations = Conversations(context.client.database)
    ends = conversations.find_ends(submission.principal.tenant, submission.source, names)
    found = _find_end(conversations, said, list(ends.values())) if said.history else None
    free = next((name for name in names if name not in ends), None)
    name, after = (found.name, found.run_id) if found is not None else (free, "")
    try:
        return accept(context.client, replace(submission, session_id=name, after=after))
    except SessionMoved:
        return accept(context.client, submission)


def _list_names(caller: Principal, said: Conversation, tools: Sequence[ClientTool]) -> list[str]:
    """List the names that the conversation's session may have. Callers have sessions of their own, so that two who
    begin alike do not meet; with other tools it is another session."""
    first = next((row["content"] for row in said.history if row["role"] == "user"), said.input)
    began = first if isinstance(first, str) else dump_canonical_json(first)
    kept = [dump_canonical_json(asdict(tool)) for tool in sorted(tools, key=lambda tool: tool.name)]
    text = "\n".join((caller.display_name, *said.instructions, *kept, began))
    name = f"api-{hashlib.sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    return [name, *(f"{name}.{number}" for number in range(2, ALIKE_MAX + 1))]


def _find_end(
    conversations: Conversations, said: Conversation, ends: list[ConversationEnd | None]
) -> ConversationEnd | None:
    for end in ends:
        if end is not None and is_same_conversation(
            said.history, [json.loads(row.body) for row in conversations.load_messages(end)]
        ):
            return end
    return None
