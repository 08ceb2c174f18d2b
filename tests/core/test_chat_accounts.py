"""Accounts by name, and whose the chats of an account are."""

from __future__ import annotations

import re

import pytest

from hermes_worker.core.chat_accounts import (
    ACCOUNT_PATTERN,
    RULE_PATTERN,
    ChatOwner,
    ChatRules,
    add_account_suffix,
    select_account_values,
    strip_account_suffix,
)
from hermes_worker.core.session_keys import ChatOrigin, build_session_key

RULES = ChatRules(
    (
        "telegram:ops/*=acme",
        "telegram:ops/-100=globex/support",
        "matrix:default/!room:example.org=acme",
        "github_comment:default/o/r#1=acme",
    )
)


@pytest.mark.parametrize("rule", RULES.rules)
def test_a_rule_can_name_chats_of_every_platform(rule):
    assert re.fullmatch(RULE_PATTERN, rule)


@pytest.mark.parametrize(
    "rule", ["telegram/*=acme", "telegram:ops=acme", "telegram:ops/*=Acme", "telegram:ops/*=a/b/c"]
)
def test_what_is_no_rule_is_refused(rule):
    assert not re.fullmatch(RULE_PATTERN, rule)


@pytest.mark.parametrize("account", ["telegram", "telegram:", "telegram:o-p", "telegram:OPS", ":ops"])
def test_what_is_no_account_is_refused(account):
    assert not re.fullmatch(ACCOUNT_PATTERN, account)


def test_a_rule_for_a_chat_comes_before_one_for_its_account():
    assert RULES.find_owner("telegram:ops", "42") == ChatOwner(tenant="acme")
    assert RULES.find_owner("telegram:ops", "-100") == ChatOwner(tenant="globex", profile="support")
    assert RULES.find_owner("telegram:default", "-100") == ChatOwner()
    assert RULES.find_owner("github_comment:default", "o/r#1") == ChatOwner(tenant="acme")
    assert RULES.find_owner_of_account("telegram:ops") == ChatOwner(tenant="acme")


def test_an_account_has_no_secret_of_another():
    values = {
        "TELEGRAM_BOT_TOKEN": "1:usual",
        "TELEGRAM_BOT_USERNAME": "usual",
        "TELEGRAM_BASE_URL": "http://t",
        "GOOGLE_CHAT_WEBHOOK_URL": "http://secret",
        "TELEGRAM_BOT_TOKEN__OPS": "2:ops",
        "TELEGRAM_BOT_TOKEN__SALES": "3:sales",
    }
    assert select_account_values(values, "default") is values
    own = select_account_values(values, "ops", secrets={"TELEGRAM_BOT_TOKEN", "GOOGLE_CHAT_WEBHOOK_URL"})
    assert own == {"TELEGRAM_BOT_TOKEN": "2:ops", "TELEGRAM_BASE_URL": "http://t"}


@pytest.mark.parametrize(
    ("variable", "usual"),
    [
        ("TELEGRAM_BOT_TOKEN__OPS", "TELEGRAM_BOT_TOKEN"),
        ("TELEGRAM_BOT_TOKEN", "TELEGRAM_BOT_TOKEN"),
        ("TELEGRAM_BOT_TOKEN_2", "TELEGRAM_BOT_TOKEN_2"),
        ("__OPS", "__OPS"),
    ],
)
def test_the_name_of_an_account_is_taken_off_its_variables(variable, usual):
    assert strip_account_suffix(variable) == usual
    assert strip_account_suffix(add_account_suffix("TELEGRAM_BOT_TOKEN", "ops")) == "TELEGRAM_BOT_TOKEN"


def test_a_person_has_a_conversation_with_each_account():
    usual, ops = (ChatOrigin(platform="telegram", chat="42", account=account) for account in ("", "ops"))
    assert build_session_key(usual) == "agent:main:telegram:dm:42"
    assert build_session_key(ops) == "agent:main:telegram@ops:dm:42"
