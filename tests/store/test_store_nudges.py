"""What rows say about runs that a nudge named."""

from __future__ import annotations

from support.store import Store


def test_rows_tell_who_is_stopped_and_who_is_watched(store: Store) -> None:
    left, stopped, watched = (store.submit().run_id for _ in range(3))
    store.runs.stop_tree(stopped)
    store.runs.mark_watched(watched, 60)

    found = store.runs.load_nudged([left, stopped, watched, "run_unknown"])

    assert (found.stopping, found.watched) == ({stopped}, {watched})
