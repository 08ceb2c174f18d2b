"""Paths below the home are stored relative to it, and found wherever the home is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.compactions import CONTEXT_FIELD, select_visible
from hermes_worker.core.home_paths import (
    find_former_home,
    from_stored,
    from_stored_document,
    is_shared_with_copies,
    strip_said,
    to_stored,
    to_stored_document,
)
from hermes_worker.core.messages import Message, Role, build_user_body, dump_canonical_json
from hermes_worker.core.moved_folders import build_folder_note, from_stored_variables, to_stored_variables

OLD, NEW = "/srv/old", "/mnt/new home"
names = st.text(st.sampled_from("ab. é/-"), min_size=1, max_size=8).filter(
    lambda text: not set(text.split("/")) & {"", ".", ".."}
)


@given(below=names)
def test_what_is_below_the_home_is_found_below_the_next_one(below: str) -> None:
    stored = to_stored(f"{OLD}/{below}", (OLD,))
    assert from_stored(stored, (OLD,)) == f"{OLD}/{below}"
    assert from_stored(stored, (NEW,)) == f"{NEW}/{below}"
    assert from_stored(stored, ()) == f"{OLD}/{below}"


@given(path=names)
def test_what_is_outside_stays_where_it_is(path: str) -> None:
    assert from_stored(to_stored(f"/srv/project/{path}", (OLD,)), (NEW,)) == f"/srv/project/{path}"


@pytest.mark.parametrize(
    "path", ["/srv/older/x", "/srv/./old2/x", "/srv/old/../secret", "/srv/old", "/srv/old/", "/x/./y/./z"]
)
def test_a_path_that_only_looks_like_one_below_the_home_is_outside(path: str) -> None:
    assert "/./" not in to_stored(path, (OLD,))


def test_the_home_may_be_spelled_in_two_ways() -> None:
    assert to_stored("/real/old/w/x", (OLD, "/real/old")) == "/srv/old/./w/x"


def test_a_workspace_says_what_it_was_called_wherever_it_goes() -> None:
    ours = dump_canonical_json({"kind": "local", "root": f"{OLD}/workspaces/run_1"})
    stored = to_stored_document(ours, "root", (OLD,))
    assert json.loads(stored)["root"] == f"{OLD}/./workspaces/run_1"
    assert from_stored_document(stored, "root", (OLD,)) == ours
    moved = from_stored_document(stored, "root", (NEW,))
    assert json.loads(moved) == {
        "kind": "local",
        "root": f"{NEW}/workspaces/run_1",
        "said": f"{OLD}/workspaces/run_1",
    }
    assert to_stored_document(moved, "root", (NEW,)) == stored
    assert strip_said(moved) == dump_canonical_json({"kind": "local", "root": f"{NEW}/workspaces/run_1"})


@pytest.mark.parametrize("kind", ["ssh", "docker", "kubernetes"])
def test_a_folder_of_another_machine_is_none_of_the_home(kind: str) -> None:
    theirs = dump_canonical_json({"kind": kind, "root": f"{OLD}/workspaces/run_1"})
    assert to_stored_document(theirs, "root", (OLD,)) == theirs
    assert is_shared_with_copies(kind, f"{OLD}/workspaces/run_1", (OLD,))


def test_documents_without_a_path_are_left_alone() -> None:
    for text in ("{}", '{"directory": null}', '{"prompt": "root is /srv/old/x"}'):
        for field in ("root", "directory"):
            assert from_stored_document(to_stored_document(text, field, (OLD,)), field, (NEW,)) == text


def test_the_home_of_then_is_known_by_a_session_that_was_given_its_workspace() -> None:
    assert find_former_home("/a/b/workspaces/run_1", "default", "run_1") == "/a/b"
    assert find_former_home("/a/b/workspaces/tenants/t/run_1", "t", "run_1") == "/a/b"
    assert find_former_home("/a/b/workspaces/run_1/src", "default", "run_1") is None
    assert find_former_home("/a/b/workspaces/run_2", "default", "run_1") is None


def test_variables_name_the_folder_of_today_and_are_kept_as_of_the_beginning() -> None:
    workspace = json.dumps({"root": f"{NEW}/w", "said": f"{OLD}/w"})
    kept = {"OUT": f"{OLD}/w/out", "PATH": f"{OLD}/w/bin:/bin:{OLD}/w", "OTHER": f"{OLD}/w2", "PLAIN": "x"}
    today = {"OUT": f"{NEW}/w/out", "PATH": f"{NEW}/w/bin:/bin:{NEW}/w", "OTHER": f"{OLD}/w2", "PLAIN": "x"}
    assert from_stored_variables(kept, workspace) == today
    assert to_stored_variables(today, workspace) == kept
    assert from_stored_variables(kept, json.dumps({"root": f"{OLD}/w"})) == kept


def asked(seq: int = 1) -> Message:
    return Message(seq=seq, role=Role.USER, body=build_user_body("go on"))


def answered(seq: int, context: str) -> Message:
    body = dump_canonical_json({CONTEXT_FIELD: context, "content": "ok", "role": "assistant"})
    return Message(seq=seq, role=Role.ASSISTANT, body=body)


def moved_to(root: str, said: str | None = f"{OLD}/w") -> str:
    return dump_canonical_json({"kind": "local", "root": root} | ({"said": said} if said else {}))


def test_a_model_is_told_once_of_each_folder() -> None:
    prompt = f"Your tools act in the directory {OLD}/w; relative paths are relative to it."
    assert build_folder_note([asked()], moved_to(f"{OLD}/w", None), prompt) == ""
    first = build_folder_note([asked()], moved_to(f"{NEW}/w"), prompt)
    assert f"{NEW}/w;" in first and f"{OLD}/w is there" in first
    rows = [asked(), answered(2, f"what a hook said\n\n{first}"), asked(3)]
    assert first in json.loads(select_visible(rows)[0].body)["content"]
    assert build_folder_note(rows, moved_to(f"{NEW}/w"), prompt) == ""
    second = build_folder_note(rows, moved_to("/third/w"), prompt)
    assert "/third/w;" in second and f"{NEW}/w is there" in second
    back = build_folder_note(rows, moved_to(f"{OLD}/w", None), prompt)
    assert f"directory {OLD}/w;" in back


def test_a_child_that_began_after_the_move_needs_no_note() -> None:
    assert build_folder_note([asked()], moved_to(f"{NEW}/w"), f"You work in {NEW}/w.") == ""
