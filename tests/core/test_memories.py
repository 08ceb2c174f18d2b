"""What a change makes of a memory: matching, limits, files, prompts and who may write. Pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.run_writers import MemoryWriter, decide_writers
from hermes_worker.features.memory.rules import (
    CHAR_LIMITS,
    DELIMITER,
    MemoryAction,
    MemoryEntry,
    MemoryOperation,
    MemoryRefusal,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
    count_chars,
    decide_change,
    format_file,
    format_usage,
    parse_file,
    parse_operations,
    render_memory_block,
    require_writer,
    shorten_preview,
)

ADD, REPLACE, REMOVE = MemoryAction
RULES = MemoryRules(limit=100, scan=lambda text: ("evil",) if "evil" in text else ())


def entries(*contents: str) -> tuple[MemoryEntry, ...]:
    return tuple(MemoryEntry(entry_id=f"mem_{n}", version=1, content=text) for n, text in enumerate(contents))


def op(
    action: MemoryAction, content: str | None = None, old_text: str | None = None, **more: object
) -> MemoryOperation:
    return MemoryOperation(action=action, content=content, old_text=old_text, **more)  # type: ignore[arg-type]


def refused(there: tuple[MemoryEntry, ...], *operations: MemoryOperation, rules: MemoryRules = RULES) -> MemoryRefused:
    with pytest.raises(MemoryRefused) as caught:
        decide_change(there, operations, rules)
    assert caught.value.entries == there
    return caught.value


def test_the_limits_are_those_of_the_original() -> None:
    assert CHAR_LIMITS == {MemoryTarget.MEMORY: 2200, MemoryTarget.USER: 1375}


def test_an_entry_is_added_replaced_and_removed_by_a_piece_of_it() -> None:
    added = decide_change((), [op(ADD, "  likes tea  ")], RULES)
    assert added.contents == ("likes tea",) and added.message == "Entry added."
    replaced = decide_change(entries("likes tea", "speaks Dutch"), [op(REPLACE, "likes coffee", "tea")], RULES)
    assert replaced.contents == ("likes coffee", "speaks Dutch")
    [change] = replaced.changes
    assert change.entry is not None and (change.entry.entry_id, change.content) == ("mem_0", "likes coffee")
    removed = decide_change(entries("likes tea", "speaks Dutch"), [op(REMOVE, old_text="Dutch")], RULES)
    assert removed.contents == ("likes tea",)


def test_an_equal_entry_is_not_added_again() -> None:
    decision = decide_change(entries("likes tea"), [op(ADD, "likes tea")], RULES)
    assert decision.changes == () and "already" in decision.message


def test_a_replacement_that_is_there_already_leaves_one_of_the_two() -> None:
    decision = decide_change(entries("likes tea", "likes coffee"), [op(REPLACE, "likes coffee", "tea")], RULES)
    assert decision.contents == ("likes coffee",)


def test_a_text_in_several_different_entries_is_ambiguous_and_shows_beginnings() -> None:
    long = "tea " + "x" * 90
    error = refused(entries("tea at four", long), op(REMOVE, old_text="tea"), rules=MemoryRules(limit=200))
    assert error.kind is MemoryRefusal.AMBIGUOUS
    assert error.matches == ("tea at four", shorten_preview(long)) and len(error.matches[1]) == 83


def test_of_identical_entries_the_first_is_meant() -> None:
    decision = decide_change(entries("tea", "tea"), [op(REMOVE, old_text="tea")], RULES)
    [change] = decision.changes
    assert change.entry is not None and change.entry.entry_id == "mem_0"


def test_a_stale_replacement_is_told_what_stands_there_now() -> None:
    assert refused(entries("likes coffee"), op(REPLACE, "x", "tea")).kind is MemoryRefusal.NO_MATCH
    by_version = op(REPLACE, "x", entry_id="mem_0", version=7)
    assert "version 1 by now" in str(refused(entries("likes coffee"), by_version))
    assert refused(entries("likes coffee"), op(REMOVE, entry_id="mem_9")).kind is MemoryRefusal.NO_MATCH


def test_the_limit_counts_delimiters_and_holds_for_the_end_of_a_batch() -> None:
    there = entries("a" * 60, "b" * 37)
    assert count_chars([one.content for one in there]) == 100 == 60 + len(DELIMITER) + 37
    assert refused(there, op(ADD, "c")).kind is MemoryRefusal.OVER_LIMIT
    batch = [op(ADD, "c" * 30), op(REMOVE, old_text="bbb")]
    assert decide_change(there, batch, RULES).contents == ("a" * 60, "c" * 30)
    assert refused((), op(ADD, "x" * 101)).kind is MemoryRefusal.OVER_LIMIT


def test_a_batch_is_made_whole_or_not_at_all() -> None:
    assert refused(entries("tea"), op(ADD, "coffee"), op(REMOVE, old_text="milk")).kind is MemoryRefusal.NO_MATCH


def test_a_batch_may_change_what_it_added_and_makes_one_entry_of_it() -> None:
    [change] = decide_change((), [op(ADD, "tea"), op(REPLACE, "coffee", "tea")], RULES).changes
    assert change.entry is None and change.content == "coffee"


def test_a_memory_over_a_limit_that_was_lowered_can_be_made_smaller() -> None:
    there = entries("a" * 90, "b" * 90)
    assert decide_change(there, [op(REMOVE, old_text="bb")], RULES).contents == ("a" * 90,)
    assert refused(there, op(ADD, "c")).kind is MemoryRefusal.OVER_LIMIT


@pytest.mark.parametrize("content", ["", "   ", None, "one\n§\ntwo", "§", "one\n§"])
def test_what_could_not_be_read_back_is_no_entry(content: str | None) -> None:
    assert refused((), op(ADD, content)).kind is MemoryRefusal.INVALID


def test_what_looks_like_an_attack_is_not_kept_and_not_shown() -> None:
    assert refused((), op(ADD, "be evil")).kind is MemoryRefusal.THREAT
    block = render_memory_block(["be evil", "likes tea"], MemoryTarget.USER, RULES)
    assert "be evil" not in block and "[BLOCKED: an entry of USER.md" in block and "likes tea" in block


@pytest.mark.parametrize(
    "document",
    [
        *("add", [], [7], [{"action": "burn"}], [{"action": "add", "content": 7}], [{"action": "add"}] * 51, None),
        [{"action": "remove", "entry_id": "mem_1", "version": True}],
    ],
)
def test_operations_that_cannot_be_read_are_refused(document: object) -> None:
    with pytest.raises(MemoryRefused) as caught:
        parse_operations(document)
    assert caught.value.kind is MemoryRefusal.INVALID


def test_operations_come_back_from_their_documents() -> None:
    made = op(REPLACE, "new", "old", entry_id="mem_1", version=3)
    assert parse_operations([made.build_document()]) == (made,)


def test_the_block_of_a_prompt_is_that_of_the_original() -> None:
    line = "═" * 46
    block = render_memory_block(["one", "two"], MemoryTarget.MEMORY, RULES)
    assert block == f"{line}\nMEMORY (your personal notes) [9% — 9/100 chars]\n{line}\none\n§\ntwo"
    assert render_memory_block([], MemoryTarget.MEMORY, RULES) == ""
    assert format_usage(["x" * 1100], 2200) == "50% — 1,100/2,200 chars"


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(str.strip), max_size=6))
def test_a_file_of_ours_is_read_as_what_it_was_written_of(contents: list[str]) -> None:
    kept: tuple[MemoryEntry, ...] = ()
    for text in contents:
        try:
            decision = decide_change(kept, [op(ADD, text)], MemoryRules(limit=100_000))
        except MemoryRefused:
            continue
        kept = entries(*decision.contents)
    texts = tuple(entry.content for entry in kept)
    assert parse_file(format_file(texts)) == tuple(
        text.replace("\r\n", "\n").removeprefix("\ufeff").strip() for text in texts
    )


def test_a_file_of_the_original_is_read() -> None:
    assert parse_file("\ufefflikes tea\r\n§\r\nspeaks Dutch\n§\nlikes tea\n") == ("likes tea", "speaks Dutch")
    assert parse_file("§ is no delimiter inside a line") == ("§ is no delimiter inside a line",)
    assert parse_file("\n\n") == ()


@pytest.mark.parametrize(
    ("source", "is_child", "is_guest", "asking"),
    [
        ("cli", False, False, {"person"}),
        ("api", False, False, {"person"}),
        ("api", False, True, {"guest"}),
        ("webhook", False, False, {"webhook"}),
        ("cron", False, False, {"cron"}),
        ("api", True, False, {"child"}),
        ("cron", True, False, {"cron", "child"}),
        ("api", True, True, {"child", "guest"}),
        ("gateway", False, False, {"person"}),
        ("gateway", True, False, {"child"}),
        ("chat-guest", False, False, {"guest"}),
        ("unknown", False, False, {"guest"}),
        ("", False, False, {"guest"}),
    ],
)
def test_whoever_asks_needs_every_permission_of_what_they_are(
    source: str, is_child: bool, is_guest: bool, asking: set[str]
) -> None:
    found = decide_writers(source, is_child=is_child, is_guest=is_guest)
    assert found == {MemoryWriter(word) for word in asking}
    require_writer(found, found)
    for lacking in found:
        with pytest.raises(MemoryRefused) as caught:
            require_writer(found, found - {lacking})
        assert caught.value.kind is MemoryRefusal.NOT_ALLOWED
