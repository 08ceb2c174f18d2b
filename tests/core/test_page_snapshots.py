"""Snapshots of pages: what is read of them, and when an element is still the one that a model meant."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.page_snapshots import (
    MASK,
    PageChange,
    PageElement,
    PageSnapshot,
    compact_snapshot,
    find_same_element,
    mask_secrets,
    parse_elements,
    shorten_snapshot,
)

PAGE = """- main [ref=e1]:
  - heading "Shop [ref=e9]" [level=1] [ref=e2]
  - 'button "a: b" [ref=e3] [cursor=pointer]'
  - textbox "Password" [active] [ref=e4]: hunter2
  - paragraph [ref=e5]: "12:00"
  - list [ref=e6]:
    - listitem [ref=e7]:
      - text: apples
      - button "Delete" [ref=e8]
    - listitem [ref=e10]:
      - text: pears
      - button "Delete" [ref=e11]
  - generic [ref=e12] [cursor=pointer]: Buy now
  - iframe [ref=e13]:
    - button "in" [ref=f1e2]"""


def at(text: str, url: str = "http://a/") -> PageSnapshot:
    return PageSnapshot(url=url, text=text)


def found(text: str, ref: str) -> PageElement | PageChange:
    return find_same_element(at(PAGE), at(text), ref)


def test_roles_names_refs_and_surroundings_are_read() -> None:
    read = {one.ref: one for one in parse_elements(PAGE) if one.ref}
    assert (read["e2"].role, read["e2"].name) == ("heading", "Shop [ref=e9]")
    assert "e9" not in read, "what a page writes into a name is no ref"
    assert (read["e3"].name, read["e4"].text, read["e12"].text) == ("a: b", "hunter2", "Buy now")
    assert read["f1e2"].around == (("main", ""), ("iframe", ""))


@pytest.mark.parametrize("ref", [one.ref for one in parse_elements(PAGE) if one.ref])
def test_everything_is_found_again_on_a_page_that_stayed(ref: str) -> None:
    same = found(PAGE, ref)
    assert isinstance(same, PageElement) and same.ref == ref


def test_a_clock_an_advertisement_and_other_refs_do_not_matter() -> None:
    later = PAGE.replace("12:00", "12:01").replace("[ref=e3]", "[ref=e33]")
    later = later.replace("  - list", '  - link "Buy this" [ref=e50]\n  - list')
    same = found(later, "e3")
    assert isinstance(same, PageElement) and same.ref == "e33"


def test_of_equal_elements_it_is_the_one_in_the_same_row() -> None:
    apples, pears = PAGE.split("    - listitem [ref=e7]:\n")[1].split("    - listitem [ref=e10]:\n")
    pears, rest = pears.split("  - generic")
    head = PAGE.split("    - listitem")[0]
    swapped = f"{head}    - listitem [ref=e10]:\n{pears}    - listitem [ref=e7]:\n{apples}  - generic{rest}"
    same = found(swapped, "e11")
    assert isinstance(same, PageElement) and same.ref == "e11"
    shifted = PAGE.replace("pears", "plums").replace("apples", "pears")
    same = found(shifted, "e11")
    assert isinstance(same, PageElement) and same.ref == "e8"
    assert found(PAGE.replace("pears", "plums"), "e11") is PageChange.GONE


def test_another_address_name_role_or_place_is_a_change() -> None:
    assert find_same_element(at(PAGE), at(PAGE, "http://b/"), "e3") is PageChange.ADDRESS
    assert found(PAGE, "e99") is PageChange.UNKNOWN_REF
    assert found(PAGE.replace("a: b", "a: c"), "e3") is PageChange.GONE
    assert found(PAGE.replace('"in"', '"out"'), "f1e2") is PageChange.GONE
    assert found(PAGE.replace("- main", "- banner"), "e3") is PageChange.GONE
    assert found(f'{PAGE}\n    - button "in" [ref=f1e3]', "f1e2") is PageChange.AMBIGUOUS


def test_what_stands_in_a_field_is_no_part_of_it_and_passwords_are_masked() -> None:
    assert isinstance(found(PAGE.replace("hunter2", "other"), "e4"), PageElement)
    assert "hunter2" not in mask_secrets(PAGE, ["hunter2"]) and MASK in mask_secrets(PAGE, ["hunter2"])
    assert mask_secrets("- textbox [ref=e1]: ab\n- button [ref=e2]: cab", ["ab"]).endswith("cab")


def test_a_compact_snapshot_has_what_can_be_acted_on() -> None:
    short = compact_snapshot(PAGE)
    assert "Buy now" in short and '"Delete"' in short and "listitem" in short
    assert "12:00" not in short and "apples" not in short
    assert shorten_snapshot("a\n" * 100, 50).startswith("a\na") and "more characters" in shorten_snapshot(
        "a\n" * 100, 50
    )


@given(st.lists(st.text(max_size=20), max_size=6), st.text(max_size=200))
def test_whatever_a_page_says_is_read_without_an_error(names: list[str], junk: str) -> None:
    text = "\n".join(f"{'  ' * depth}- button {json.dumps(name)} [ref=e{depth}]" for depth, name in enumerate(names))
    for page in (text, junk, f"{text}\n{junk}"):
        for one in parse_elements(page):
            if one.ref:
                find_same_element(at(page), at(page), one.ref)
        compact_snapshot(page)
        mask_secrets(page, [junk])
    read = [one for one in parse_elements(text) if one.ref]
    if all(name.isprintable() for name in names):
        assert [one.name for one in read] == names
