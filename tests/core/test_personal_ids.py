"""Ids of people and chats as hashes."""

from __future__ import annotations

import pytest

from hermes_worker.core.personal_ids import hash_chat_id, hash_user_id, hides_ids


def test_hashes_are_the_originals() -> None:
    assert hash_user_id("12345") == "user_5994471abb01"
    assert hash_chat_id("telegram:12345") == "telegram:5994471abb01"
    assert hash_chat_id("12345") == "5994471abb01"
    assert hash_chat_id(":12345") != ":5994471abb01"


@pytest.mark.parametrize(
    ("platform", "is_wanted", "is_hashed"),
    [
        ("telegram", True, True),
        ("whatsapp", True, True),
        ("email", True, True),
        ("telegram", False, False),
        ("discord", True, False),
        ("slack", True, False),
        ("of_an_extension", True, False),
    ],
)
def test_ids_are_hashed_where_no_mention_needs_them(platform: str, is_wanted: bool, is_hashed: bool) -> None:
    assert hides_ids(platform, is_wanted=is_wanted) is is_hashed
