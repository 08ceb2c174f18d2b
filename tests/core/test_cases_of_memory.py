"""What the original's own tests say of memories, and public reports of skills and of search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from support.outside_cases import original_cases, reported_cases
from support.word_index import matches_words

from hermes_worker.core.offered_skills import SkillError
from hermes_worker.core.search_queries import (
    build_filters,
    count_hits,
    fold_text,
    make_words,
    parse_query,
)
from hermes_worker.features.memory.rules import MemoryEntry, MemoryRefused, MemoryRules, decide_change, parse_operations
from hermes_worker.features.skills.rules import SkillFile
from hermes_worker.features.skills.text_rules import read_facts


@original_cases("memory")
def test_a_memory_is_changed_as_in_the_original(case: Mapping[str, Any]) -> None:
    said, expected = case["input"], case["expected"]
    there = [MemoryEntry(entry_id=f"m{n}", version=1, content=each) for n, each in enumerate(said["entries"])]
    rules = MemoryRules(limit=said["limit"])
    if not expected["ok"]:
        with pytest.raises(MemoryRefused):
            decide_change(there, parse_operations(said["operations"]), rules)
        return
    assert list(decide_change(there, parse_operations(said["operations"]), rules).contents) == expected["entries"]


@reported_cases("cafe")
def test_a_word_is_found_without_its_accents(case: Mapping[str, Any]) -> None:
    query, text = parse_query(case["input"]["query"]), fold_text(case["input"]["said"])
    assert query is not None
    assert matches_words(build_filters(query), make_words(text)) and count_hits(query, text) == 1


@reported_cases("skill-colon")
def test_a_colon_in_a_description_needs_no_quotes(case: Mapping[str, Any]) -> None:
    facts = read_facts([SkillFile(path="SKILL.md", body=case["input"].encode())], called="colon")
    assert facts.description == "Use when: the user asks: things"


@pytest.mark.parametrize(
    ("line", "description"),
    [
        ("Use when: it rains", "Use when: it rains"),
        ("Don't use: ever", "Don't use: ever"),
        ("first: line\n  and: more of it", "first: line and: more of it"),
        ("[beta] Use it: now", "[beta] Use it: now"),
        ("@mentions: answer them", "@mentions: answer them"),
        ('"Quoted": and not', '"Quoted": and not'),
        ("'Quoted: well'", "Quoted: well"),
        (">\n  folded: text\n  of two lines", "folded: text of two lines"),
    ],
)
def test_what_yaml_would_refuse_as_a_text_is_read_as_one(line: str, description: str) -> None:
    body = f"---\nname: x\ndescription: {line}\nmetadata:\n  hermes:\n    tags: [a, b]\n---\nBODY\n"
    facts = read_facts([SkillFile(path="SKILL.md", body=body.encode())], called="x")
    assert (facts.description, facts.tags) == (description, ("a", "b"))


def test_front_matter_that_no_quotes_mend_is_still_refused() -> None:
    for line in ("description: [a", "name: x\n bad\n: y: z", "description: &a x"):
        with pytest.raises(SkillError):
            read_facts([SkillFile(path="SKILL.md", body=f"---\n{line}\n- x\n---\nBODY\n".encode())], called="x")


def test_an_entry_that_is_the_text_is_meant_and_not_those_that_hold_it() -> None:
    there = [
        MemoryEntry(entry_id=f"m{n}", version=1, content=text) for n, text in enumerate(("uses vim daily", "uses vim"))
    ]
    for action, left in (("remove", ["uses vim daily"]), ("replace", ["uses vim daily", "uses emacs"])):
        operation = {"action": action, "old_text": "uses vim", "content": "uses emacs"}
        assert list(decide_change(there, parse_operations([operation]), MemoryRules(limit=500)).contents) == left
