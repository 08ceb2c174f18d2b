"""Which settings may be overridden, and that nobody raises their own limits."""

from __future__ import annotations

import pytest

from hermes_worker.core.overrides import OVERRIDABLE, OverrideLevel, is_wider
from hermes_worker.settings import find_setting


@pytest.mark.parametrize(
    ("key", "above", "wanted", "expected"),
    [
        ("agent.max_turns", 10, 10, False),
        ("agent.max_turns", 10, 9, False),
        ("agent.max_turns", 10, 11, True),
        ("agent.gateway_timeout", None, 60.0, False),
        ("agent.gateway_timeout", 60.0, None, True),
        ("agent.context_files", True, False, False),
        ("agent.context_files", False, True, True),
        ("tool_loop_guardrails.hard_stop_enabled", False, True, False),
        ("tool_loop_guardrails.hard_stop_enabled", True, False, True),
        ("approvals.mode", "smart", "manual", False),
        ("approvals.mode", "manual", "smart", True),
        ("approvals.mode", "smart", "off", True),
        ("approvals.api_mode", "deny", "ask", True),
        ("approvals.api_mode", "approve", "deny", False),
        ("agent.reasoning_effort", "low", "ultra", False),
        ("terminal.network", "proxy", "none", False),
        ("terminal.network", "proxy", "open", True),
        ("terminal.cpu_s_max", None, 60, False),
        ("terminal.cpu_s_max", 60, None, True),
        ("skills.writes", "allow", "ask", False),
        ("skills.writes", "off", "ask", True),
        ("memory.writers", ("person", "cron"), ("cron",), False),
        ("memory.writers", ("person",), (), False),
        ("memory.writers", ("person",), ("person", "webhook"), True),
    ],
)
def test_a_caller_may_only_allow_less(key: str, above: object, wanted: object, expected: bool) -> None:
    assert is_wider(OVERRIDABLE[key], above, wanted) is expected


def test_nothing_that_holds_a_secret_an_address_or_a_place_may_be_overridden() -> None:
    for key in OVERRIDABLE:
        assert not find_setting(key)[1].is_secret, key
        assert not key.endswith(("url", "host", "key", "dirs", "image", "home", "passthrough")), key


def test_what_only_operators_say_is_for_tenants_alone() -> None:
    assert OVERRIDABLE["agent.toolsets"].levels == (OverrideLevel.TENANT,)
    assert OVERRIDABLE["agent.max_turns"].levels == tuple(OverrideLevel)
