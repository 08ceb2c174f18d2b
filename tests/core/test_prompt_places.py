"""Sections and later texts: in. One text in the order of the places: out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.prompt_places import AssembledPrompt, Gap, PromptPlace, Tier, fill_gaps, join_sections

_PLACES = list(PromptPlace)
_TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).map(str.strip).filter(bool)
_SECTIONS = st.dictionaries(st.sampled_from(_PLACES[1:]), _TEXTS)


def test_the_places_stand_in_the_order_of_the_original() -> None:
    assert [place.label for place in PromptPlace] == [
        *("identity", "working", "tools", "family", "skills", "environment"),
        *("caller", "project", "sources"),
        *("memory", "user", "provider", "runtime"),
    ]
    tiers = [place.tier for place in PromptPlace]
    assert tiers == sorted(tiers, key=list(Tier).index)


def test_a_gap_is_filled_where_its_place_is() -> None:
    prompt = join_sections(
        [(PromptPlace.RUNTIME, "today"), (PromptPlace.IDENTITY, "I am"), (PromptPlace.CALLER, "please")],
        [PromptPlace.SKILLS, PromptPlace.MEMORY, PromptPlace.USER],
    )
    assert prompt.text == "I am\n\nplease\n\ntoday"
    done = fill_gaps(prompt, {PromptPlace.USER: "she", PromptPlace.SKILLS: "skills\n", PromptPlace.MEMORY: "facts"})
    assert done == AssembledPrompt(text="I am\n\nskills\n\nplease\n\nfacts\n\nshe\n\ntoday")


def test_a_gap_that_is_left_moves_with_what_stands_before_it() -> None:
    prompt = join_sections(
        [(PromptPlace.IDENTITY, "I am"), (PromptPlace.RUNTIME, "today")], [PromptPlace.SKILLS, PromptPlace.PROJECT]
    )
    first = fill_gaps(prompt, {PromptPlace.SKILLS: "skills", PromptPlace.PROJECT: " "})
    assert first == AssembledPrompt(
        text="I am\n\nskills\n\ntoday", gaps=(Gap(PromptPlace.PROJECT, len("I am\n\nskills")),)
    )
    assert fill_gaps(first, {PromptPlace.PROJECT: "files"}).text == "I am\n\nskills\n\nfiles\n\ntoday"


def test_what_has_no_gap_is_left_out() -> None:
    prompt = join_sections([(PromptPlace.IDENTITY, "I am")], [PromptPlace.SKILLS])
    assert fill_gaps(prompt, {PromptPlace.MEMORY: "facts"}) == prompt
    once = fill_gaps(prompt, {PromptPlace.SKILLS: "skills"})
    assert fill_gaps(once, {PromptPlace.SKILLS: "skills"}) == once, "a place is filled once"


@given(_SECTIONS, st.sets(st.sampled_from(_PLACES[1:])), st.sets(st.sampled_from(_PLACES[1:])))
def test_when_a_text_comes_makes_no_difference(
    sections: dict[PromptPlace, str], later: set[PromptPlace], last: set[PromptPlace]
) -> None:
    at_once = join_sections([(PromptPlace.IDENTITY, "I am"), *sections.items()])
    prompt = join_sections(
        [
            (PromptPlace.IDENTITY, "I am"),
            *((place, text) for place, text in sections.items() if place not in later | last),
        ],
        later | last,
    )
    prompt = fill_gaps(prompt, {place: text for place, text in sections.items() if place in later - last})
    prompt = fill_gaps(prompt, {place: text for place, text in sections.items() if place in last})
    assert prompt.text == at_once.text
