"""How two versions are compared, what the verdict says, and how to go back."""

from __future__ import annotations

import json

import pytest

from hermes_worker.features.forks.rehearsal_rules import (
    Difference,
    FactKind,
    GoingBack,
    build_verdict,
    compare_facts,
    parse_facts,
    render_verdict,
)

COUNTS = {"replayed": 3, "taken_over": 2, "prompts": 5}


def test_what_is_gone_or_different_is_a_reason_and_what_is_new_is_none() -> None:
    before = {"price": {"a": "1", "b": "2", "c": "3"}}
    found = compare_facts(before, {"price": {"a": "1", "b": "3", "d": "4"}, "tool": {"x": "y"}})
    assert [(each.kind, each.subject, each.after) for each in found] == [
        (FactKind.PRICE, "b", "3"),
        (FactKind.PRICE, "c", None),
    ]


@pytest.mark.parametrize("kind", FactKind)
def test_a_run_that_was_not_looked_at_again_is_no_reason(kind: FactKind) -> None:
    is_of_run = kind in (FactKind.PROMPT, FactKind.REPLAY, FactKind.RUN_AT_WORK)
    assert bool(compare_facts({kind: {"it": "ends"}}, {})) is not is_of_run
    assert compare_facts({kind: {"it": "ends"}}, {kind: {"it": "ends otherwise"}})


@pytest.mark.parametrize(
    ("found", "newest", "works_with", "said"),
    [
        ("0267", "0267", "0267", "start the version before"),
        ("0266", "0268", "0100", "works on the schema 0268"),
        ("0100", "0268", "0266", "restore it with that version"),
        ("0266", "0268", "unknown", "restore it with that version"),
    ],
)
def test_the_advice_says_how_to_go_back(found: str, newest: str, works_with: str, said: str) -> None:
    assert said in GoingBack(found=found, newest=newest, works_with=works_with).advice


def test_the_verdict_counts_what_is_accepted_and_shows_where_long_values_differ() -> None:
    back = GoingBack(found="0266", newest="0267", works_with="0100")
    tool = Difference(kind=FactKind.TOOL, subject="todo", before="x" * 500 + "a", after="x" * 500 + "b")
    price = Difference(kind=FactKind.PRICE, subject="m", before="1", after=None)
    refused = build_verdict(back, [tool, price], [], COUNTS)
    assert not refused["is_safe"]
    text = render_verdict(refused)
    assert text.startswith("no: from schema 0266 to 0267, 3 recorded runs replayed, 2 runs at work taken over")
    assert "xa -> ...x" in text and "price m: 1 -> gone" in text and len(text) < 1_000
    accepted = build_verdict(back, [price], [FactKind.PRICE], COUNTS)
    assert accepted["is_safe"]
    assert "accepted: price m" in render_verdict(accepted)
    many = render_verdict(build_verdict(back, [price] * 80, [], COUNTS))
    assert "and 30 more" in many


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"facts": []}', '{"facts": {"tool": {"x": 1}}}', "[" * 100_000])
def test_a_file_that_nobody_recorded_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--record"):
        parse_facts(text)
    assert parse_facts(json.dumps({"facts": {"tool": {"x": "y"}}})) == {"tool": {"x": "y"}}
