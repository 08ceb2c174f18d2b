"""Values of JSON that somebody else wrote: every reader takes every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.json_values import read_id, read_list, read_mapping, read_number, read_stripped_text, read_text

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(JSON)
def test_any_value_is_read_as_the_type_that_was_asked_for(value: object) -> None:
    assert read_text(value) == (value if isinstance(value, str) else "")
    assert read_stripped_text(value) == read_text(value).strip()
    assert read_mapping(value) == (value if isinstance(value, dict) else {})
    assert list(read_list(value)) == (value if isinstance(value, list) else [])
    assert isinstance(read_id(value), str)
    assert read_number(value) is None or type(value) in (int, float)


@pytest.mark.parametrize("value", [True, False])
def test_true_is_no_number_and_no_id(value: bool) -> None:
    assert (read_number(value), read_id(value)) == (None, "")
    assert (read_number(7), read_id(7), read_id("7")) == (7.0, "7", "7")
