"""The runs of a tree and where each of them stands."""

from __future__ import annotations

import pytest
from support.store import Store, asks

from hermes_worker.core.replay import Replay
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.trees import load_tree


def test_every_run_of_a_tree_is_shown_from_each_of_them(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    first, second = store.delegate(root, 2)
    store.ask_tools(first, asks(Replay.PURE))
    [grandchild] = store.delegate(first, 1)
    store.submit()

    shapes = [load_tree(store.database, run_id) for run_id in (root, first, second, grandchild)]
    assert all(shape == shapes[0] for shape in shapes)
    [shape, *_] = shapes
    assert shape.total == 4
    place = shape.nodes[1].call
    assert place is not None
    assert place[1] == 0
    assert [(node.run.run_id, node.parent_run_id, node.depth, node.child_index) for node in shape.nodes] == [
        (root, None, 0, None),
        (first, root, 1, 0),
        (second, root, 1, 1),
        (grandchild, first, 2, 0),
    ]
    assert not any(node.is_background for node in shape.nodes)


def test_a_run_that_delegated_nothing_is_a_tree(store: Store) -> None:
    run_id = store.submit().run_id
    shape = load_tree(store.database, run_id)
    assert (shape.total, [node.run.run_id for node in shape.nodes]) == (1, [run_id])


def test_the_turn_that_a_background_answer_began_stands_below_its_cause(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    [child] = store.delegate(root, 1, note="it goes on")
    store.answer(root)
    store.answer(child)

    shape = load_tree(store.database, child)
    assert shape.total == 3
    assert [node.parent_run_id for node in shape.nodes] == [None, root, root]
    assert [node.call is not None for node in shape.nodes] == [False, True, False]
    assert [node.is_background for node in shape.nodes] == [False, True, False]


def test_a_tree_that_is_too_large_shows_its_oldest_runs(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    children = store.delegate(root, 5)
    shape = load_tree(store.database, children[4], limit=3)
    assert shape.total == 6
    assert [node.run.run_id for node in shape.nodes] == [root, *children[:2]]


def test_a_tree_of_nobody_is_not_found(store: Store) -> None:
    with pytest.raises(RunNotFound):
        load_tree(store.database, "run_x")
