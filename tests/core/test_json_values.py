"""Values of JSON that somebody else wrote: every reader takes every value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.json_values import id_of, list_of, mapping_of, number_of, stripped_of, text_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(JSON)
def test_any_value_is_read_as_the_type_that_was_asked_for(value: object) -> None:
    assert text_of(value) == (value if isinstance(value, str) else "")
    assert stripped_of(value) == text_of(value).strip()
    assert mapping_of(value) == (value if isinstance(value, dict) else {})
    assert list(list_of(value)) == (value if isinstance(value, list) else [])
    assert isinstance(id_of(value), str)
    assert number_of(value) is None or type(value) in (int, float)


@pytest.mark.parametrize("value", [True, False])
def test_true_is_no_number_and_no_id(value: bool) -> None:
    assert (number_of(value), id_of(value)) == (None, "")
    assert (number_of(7), id_of(7), id_of("7")) == (7.0, "7", "7")
