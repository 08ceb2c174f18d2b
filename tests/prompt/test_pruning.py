"""Old results of tools in short: what is shown of them, and that it stays the same to the byte."""

from __future__ import annotations

import json
from typing import Any

from hermes_worker.agent.prompt.compaction import (
    PROTECTED,
    add_futile_count,
    build_compaction_body,
    build_pruning_body,
    estimate_tokens,
    find_share,
    is_futile,
    plan_compaction,
    plan_pruning,
    trigger_tokens,
)
from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.compactions import parse_facts, select_visible
from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.pruning import drop_repeated_results, shorten_results

Body = dict[str, Any]


def rows(*bodies: Body) -> list[Message]:
    return [Message(seq=n, role=Role(body["role"]), body=dump_canonical_json(body)) for n, body in enumerate(bodies, 1)]


def called(number: int, result: str, *, arguments: str = '{"command":"make"}', **more: object) -> list[Body]:
    function = {"name": "terminal", "arguments": arguments}
    call = {"id": f"c{number}", "type": "function", "function": function, **more}
    return [
        {"role": "assistant", "content": f"step {number}", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": result},
    ]


def said(row: Message) -> Any:
    return json.loads(row.body)["content"]


def also(history: list[Message], body: str) -> list[Message]:
    return [*history, Message(seq=len(history) + 1, role=Role.USER, body=body)]


def test_a_long_result_is_one_line_that_says_what_it_was() -> None:
    document = dump_canonical_json({"exit_code": 2, "output": "make: *** no rule\n" + "x\n" * 300})
    [_, shown] = shorten_results(rows(*called(1, document)), 2)
    assert said(shown).startswith('[terminal {"command":"make"}] exit 2, ')
    assert "make: *** no rule" in said(shown) and len(said(shown)) < 300
    assert json.loads(shown.body)["tool_call_id"] == "c1", "the call keeps its result"


def test_of_equal_results_the_newest_stays_whole() -> None:
    history = rows(*called(1, "same " * 100), *called(2, "same " * 100), *called(3, "same " * 100))
    assert ["later call" in said(row) for row in shorten_results(history, 4)] == [
        False,
        True,
        False,
        False,
        False,
        False,
    ]
    assert said(drop_repeated_results(history)[1]) == "[the same result as that of a later call]"
    assert drop_repeated_results(history)[5] == history[5]


def test_short_results_and_newer_rows_stay_to_the_byte() -> None:
    history = rows(*called(1, "short"), *called(2, "y" * 5_000))
    assert shorten_results(history, 2) == history
    assert shorten_results(history, 4)[:3] == history[:3]
    assert shorten_results(history, 0) is history


def test_long_texts_in_arguments_are_cut_and_stay_json() -> None:
    written = dump_canonical_json({"path": "/a", "content": "z" * 4_000, "lines": ["w" * 900]})
    [call, _] = shorten_results(rows(*called(1, "ok", arguments=written)), 2)
    shown = json.loads(json.loads(call.body)["tool_calls"][0]["function"]["arguments"])
    assert shown["path"] == "/a" and len(shown["content"]) == 201 and len(shown["lines"][0]) == 201


def test_a_reply_that_its_provider_signed_keeps_its_arguments() -> None:
    history = rows(
        *called(1, "ok", arguments=dump_canonical_json({"content": "z" * 4_000}), extra_content={"s": "sig"})
    )
    assert shorten_results(history, 2) == history


def test_arguments_that_no_json_is_and_nested_ones_do_no_harm() -> None:
    deep = '{"a":' * 600 + '"x"' + "}" * 600
    for arguments in ("{broken " + "x" * 600, deep, "[" + "1," * 400 + "1]"):
        history = rows(*called(1, "ok", arguments=arguments))
        assert [row.seq for row in shorten_results(history, 2)] == [1, 2]


def test_old_images_are_named_and_not_shown() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 9_000}}]
    [_, shown] = shorten_results(rows(called(1, "")[0], {"role": "tool", "tool_call_id": "c1", "content": parts}), 2)
    assert "[an image]" in said(shown) and len(shown.body) < 400


def long_history(steps: int, size: int = 2_000) -> list[Message]:
    bodies: list[Body] = [{"role": "user", "content": "begin"}]
    for number in range(steps):
        bodies += called(number, f"{number} " + "x" * size)
    return rows(*bodies)


def test_a_pruned_transcript_is_a_view_that_later_rows_do_not_change() -> None:
    history = long_history(60)
    through = plan_pruning(history, over=10_000, trigger=20_000)
    assert through is not None
    assert len(history) - through >= PROTECTED.tail_rows
    once = also(history, build_pruning_body(history, through))
    shown = select_visible(once)
    assert estimate_tokens(shown) <= estimate_tokens(history) - 10_000
    assert [row.seq for row in shown] == [row.seq for row in history], "no row is gone"
    assert shown[through:] == history[through:]
    assert list(build_messages(shown)) == [row.body for row in shown]
    grown = [*once, *(Message(seq=len(once) + n, role=Role(b["role"]), body=dump_canonical_json(b)) for n, b in enumerate(called(999, "0 " + "x" * 2_000), 1))]  # fmt: skip  # noqa: E501
    assert list(select_visible(grown))[: len(shown)] == list(shown), "an equal result that comes later changes nothing"
    assert history == long_history(60), "nor is a stored row another one"


def test_pruning_is_no_way_out_where_it_takes_too_little_away() -> None:
    assert plan_pruning(long_history(60), over=10**6, trigger=20_000) is None
    assert plan_pruning(long_history(60, size=20), over=1_000, trigger=20_000) is None
    assert plan_pruning([], over=1, trigger=20_000) is None


def test_a_summary_after_pruning_and_pruning_after_a_summary_keep_both() -> None:
    history = long_history(60)
    plan = plan_compaction(history, trigger=20_000)
    assert plan is not None
    summarised = also(history, build_compaction_body(plan, "the notes"))
    newest = also(summarised, build_pruning_body(summarised, plan.through + 4))
    assert any("the notes" in row.body for row in select_visible(newest))
    assert parse_facts(newest[-1]).pruned == plan.through + 4
    again = plan_compaction(newest, trigger=4_000)
    assert again is not None and again.previous == "the notes"


# --- whether and when ------------------------------------------------------------------------------------------------


def test_two_compactions_that_gained_nothing_stop_the_third_until_more_was_said() -> None:
    history = long_history(60)
    for expected in (False, True):
        plan = plan_compaction(history, trigger=20_000)
        assert plan is not None
        # The system prompt and the tools are so large that nothing helps.
        body = add_futile_count(history, build_compaction_body(plan, "n"), tokens=10**6, trigger=20_000)
        history = also(history, body)
        assert is_futile(history, trigger=20_000) is expected
        more = called(900 + len(history), "y" * 6_000)
        history += [Message(seq=len(history) + n, role=Role(b["role"]), body=dump_canonical_json(b)) for n, b in enumerate(more, 1)]  # fmt: skip  # noqa: E501
    assert is_futile(history, trigger=20_000)
    assert not is_futile(history, trigger=10_000), "a tenth of what makes it too long was said since"


def test_a_compaction_that_gained_something_is_counted_for_nothing() -> None:
    history = long_history(60)
    plan = plan_compaction(history, trigger=20_000)
    assert plan is not None
    body = build_compaction_body(plan, "n")
    assert add_futile_count(history, body, tokens=estimate_tokens(history) + 100, trigger=20_000) == body


def test_models_have_shares_of_their_own() -> None:
    assert find_share("openai", "gpt-4o", 0.5) == (0.5, False)
    assert find_share("openrouter", "arcee-ai/Trinity-Mini", 0.5) == (0.75, False)
    assert find_share("openai-codex", "gpt-5.5", 0.5) == (0.85, False)
    assert find_share("openai-codex", "gpt-5.5-spark", 0.5) == (0.7, False)
    assert find_share("openai-codex", "gpt-5.5", 0.9) == (0.9, False), "the table only raises"
    own = (("gpt-5.5*", 0.3), ("*", 0.6))
    assert find_share("openai-codex", "gpt-5.5-spark", 0.5, own) == (0.3, True)
    assert find_share("x", "acme/gpt-5.5", 0.5, own) == (0.3, True)
    assert find_share("x", "other", 0.5, own) == (0.6, True)
    assert trigger_tokens(200_000, None, 0.4, is_exact=True) == 80_000
    assert trigger_tokens(200_000, None, 0.4) == 150_000
