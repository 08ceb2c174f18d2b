"""A turn's memory travels through a row and comes out as it went in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.recovery_state import (
    Amendment,
    RecoveryState,
    ReplyCounters,
    dump_recovery_state,
    parse_recovery_state,
)

counts = st.integers(0, 9)
memories = st.builds(
    RecoveryState,
    counters=st.builds(
        ReplyCounters,
        continuations=counts,
        empties=counts,
        was_nudged_after_tools=st.booleans(),
        parts=st.lists(st.text(), max_size=3).map(tuple),
        scaffold=st.lists(st.text(), max_size=3).map(tuple),
    ),
    output_tokens_max=st.none() | st.integers(1, 100_000),
    summaries=counts,
    amendments=st.frozensets(st.sampled_from(Amendment)),
    provider=counts,
    weight_percent=st.integers(0, 300),
)


@given(memories)
def test_a_memory_comes_back_as_it_was_written(memory: RecoveryState) -> None:
    document = dump_recovery_state(memory)

    if document is not None and not any("\ud800" <= char <= "\udfff" for char in document):
        assert parse_recovery_state(document) == memory
        assert dump_recovery_state(parse_recovery_state(document)) == document


def test_a_turn_without_memories_stores_nothing() -> None:
    assert dump_recovery_state(RecoveryState()) is None
    assert parse_recovery_state(None) == RecoveryState()


def test_what_a_newer_worker_wrote_is_read_as_far_as_it_is_known() -> None:
    document = '{"version":7,"provider":2,"amendments":["no_images","no_poetry"],"mood":"good","counters":{"new":1}}'

    assert parse_recovery_state(document) == RecoveryState(provider=2, amendments=frozenset({Amendment.NO_IMAGES}))


@pytest.mark.parametrize(
    "document",
    [
        "[]",
        "{}",
        "nonsense",
        '{"version":"1"}',
        '{"version":1,"provider":-1}',
        '{"version":1,"summaries":true}',
        '{"version":1,"amendments":{}}',
        '{"version":1,"counters":[]}',
        '{"version":1,"counters":{"parts":"x"}}',
    ],
)
def test_nonsense_is_refused(document: str) -> None:
    with pytest.raises(ValueError):
        parse_recovery_state(document)
