from __future__ import annotations

from typing import Any

import pytest


def _item(item_id: str, content: str = "do it", status: str = "pending") -> dict[str, str]:
    return {"id": item_id, "content": content, "status": status}


def test_a_list_is_kept_with_the_session_and_read_back(session: Any) -> None:
    items = [_item("1", "first", "in_progress"), _item("2", "second")]
    written = session("todo", todos=items)
    assert written["todos"] == items
    assert written["summary"] == {"total": 2, "pending": 1, "in_progress": 1, "completed": 0, "cancelled": 0}
    assert session.documents["todo"] == items
    assert session("todo") == written


def test_without_a_list_there_is_nothing_to_do(session: Any) -> None:
    assert session("todo")["todos"] == []


def test_reading_changes_nothing(session: Any) -> None:
    assert session.result("todo").session_updates == {}


def test_a_new_list_replaces_the_old_one(session: Any) -> None:
    session("todo", todos=[_item("1"), _item("2")])
    assert session("todo", todos=[_item("3")])["todos"] == [_item("3")]
    assert session("todo", todos=[])["todos"] == []
    assert "todo" not in session.documents


def test_merging_changes_what_is_there_and_appends_the_rest(session: Any) -> None:
    session("todo", todos=[_item("1", "first"), _item("2", "second")])
    merged = session("todo", merge=True, todos=[{"id": "2", "status": "completed"}, _item("3", "third")])
    assert merged["todos"] == [_item("1", "first"), _item("2", "second", "completed"), _item("3", "third")]


def test_of_two_items_with_one_id_the_last_counts(session: Any) -> None:
    assert session("todo", todos=[_item("1", "a"), _item("1", "b")])["todos"] == [_item("1", "b")]


def test_items_may_come_as_json_text_and_ids_as_numbers(session: Any) -> None:
    assert session("todo", todos='[{"id": 1, "content": "x", "status": "pending"}]')["todos"] == [_item("1", "x")]
    assert session("todo", todos=['{"id": "1", "content": "x"}'])["todos"] == [_item("1", "x")]


def test_a_status_that_does_not_exist_is_an_error_that_names_the_others(session: Any) -> None:
    message = session.error("todo", todos=[_item("1", "x", "done")])
    assert "must be one of 'pending', 'in_progress', 'completed', 'cancelled'" in message


def test_the_list_and_its_items_are_bounded(session: Any) -> None:
    written = session("todo", todos=[_item(str(n)) for n in range(300)])
    assert len(written["todos"]) == 256
    assert "the last 44 were not kept" in written["note"]
    long = session("todo", todos=[_item("1", "x" * 5_000)])["todos"][0]["content"]
    assert len(long) == 4_000
    assert long.endswith("… [truncated]")


@pytest.mark.parametrize("document", ["text", 5, {"a": 1}, [1, "x", None], [[]], [{"id": {}, "status": 7}]])
def test_a_broken_session_document_is_no_obstacle(session: Any, document: object) -> None:
    session.documents["todo"] = document
    session("todo")
    assert session("todo", merge=True, todos=[_item("1")])["todos"][-1] == _item("1")
