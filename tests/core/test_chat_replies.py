"""Which message an answer is a reply to."""

from __future__ import annotations

import pytest

from hermes_worker.core.chat_replies import ReplyMode, build_reply_metadata, find_reply_target

HERE = {"sender": "telegram@ops", "chat": "42"}


def said(mode: ReplyMode = ReplyMode.FIRST, message_id: str = "7") -> dict[str, str]:
    return {"chat": "42", **build_reply_metadata("telegram@ops", message_id, mode)}


@pytest.mark.parametrize(
    ("mode", "replies"), [(ReplyMode.OFF, ["", ""]), (ReplyMode.FIRST, ["7", ""]), (ReplyMode.ALL, ["7", "7"])]
)
def test_the_mode_says_which_parts_are_replies(mode, replies):
    assert [find_reply_target(said(mode), "gateway", part=part, **HERE) for part in (0, 1)] == replies


@pytest.mark.parametrize(
    ("source", "where"),
    [
        ("api", HERE),
        (None, HERE),
        ("gateway", HERE | {"chat": "43"}),
        ("gateway", HERE | {"sender": "telegram"}),
    ],
)
def test_what_goes_elsewhere_or_began_elsewhere_replies_to_nothing(source, where):
    assert find_reply_target(said(), source, part=0, **where) == ""
    assert find_reply_target(said(), "chat-guest", part=0, **HERE) == "7"


@pytest.mark.parametrize("message_id", ["", "x" * 501])
def test_a_message_without_an_id_that_can_be_kept_is_not_replied_to(message_id):
    assert build_reply_metadata("telegram", message_id, ReplyMode.ALL) == {}
