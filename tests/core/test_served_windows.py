"""What servers answer when they are asked for the window of a model, each in the shape of one that was seen."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.recovery.served_windows import MODELS, OF_OWN_SERVERS, list_queries

MODEL = "qwen3:8b"
READERS = {place.path: place.read for place in (MODELS, *OF_OWN_SERVERS)}
TOLD = [
    ("/models", {"object": "list", "data": [{"id": MODEL, "max_model_len": 32_768}]}, 32_768),  # vLLM
    ("/models", {"data": [{"id": "x"}, {"id": MODEL, "context_length": 131_072}]}, 131_072),  # OpenRouter, Nous
    ("/models", {"data": [{"id": MODEL, "context_window": 131_072}, {"id": "y", "context_window": 8_192}]}, 131_072),
    ("/models", [{"id": MODEL, "context_length": 65_536}], 65_536),  # Together
    ("/models", {"data": [{"id": "/weights/model", "max_model_len": 4_096}]}, 4_096),  # the only one it serves
    ("/models", {"data": [{"id": "a", "max_model_len": 4_096}, {"id": "b", "max_model_len": 8_192}]}, None),
    ("/models", {"data": [{"id": MODEL, "meta": {"n_ctx_train": 131_072}}]}, None),  # llama-server
    ("/models", {"data": [{"id": MODEL, "max_model_len": 0}]}, None),
    ("/models", {"data": [{"id": MODEL, "object": "model", "owned_by": "openai"}]}, None),
    ("/props", {"default_generation_settings": {"n_ctx": 65_536}, "total_slots": 4}, 65_536),  # llama-server
    ("/props", {"error": "not found"}, None),
    ("/api/v0/models", {"data": [{"id": MODEL, "state": "loaded", "loaded_context_length": 8_192}]}, 8_192),
    ("/api/v0/models", {"data": [{"id": MODEL, "state": "not-loaded", "max_context_length": 32_768}]}, None),
    ("/api/v0/models", {"data": [{"id": "another", "loaded_context_length": 8_192}]}, None),
    ("/api/ps", {"models": [{"name": MODEL, "model": MODEL, "context_length": 4_096}]}, 4_096),  # Ollama
    ("/api/ps", {"models": [{"name": "another:1b", "context_length": 4_096}]}, None),
    ("/api/show", {"parameters": 'stop "<|im_end|>"\nnum_ctx                        16384\n'}, 16_384),
    ("/api/show", {"model_info": {"qwen3.context_length": 40_960}}, None),  # what it was trained with
    ("/info", {"model_id": "m", "max_input_tokens": 1_024, "max_total_tokens": 2_048}, 2_048),  # TGI
]


@pytest.mark.parametrize(("path", "document", "window"), TOLD, ids=range(len(TOLD)))
def test_a_window_that_is_in_force_is_read_and_no_other(path: str, document: object, window: int | None) -> None:
    assert READERS[path](document, MODEL) == window


def test_a_model_of_ollama_without_a_tag_is_its_latest() -> None:
    document = {"models": [{"name": "qwen3:latest", "context_length": 4_096}]}
    assert READERS["/api/ps"](document, "qwen3") == 4_096


def test_only_a_server_of_ones_own_is_asked_at_other_doors() -> None:
    assert [place.path for place in list_queries(is_own_server=False)] == ["/models"]
    assert len(list_queries(is_own_server=True)) == len(READERS)


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["data", "models", "id", "max_model_len", "parameters", "default_generation_settings", "n_ctx"]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(_values, st.sampled_from(sorted(READERS)))
def test_any_answer_is_survived(document: object, path: str) -> None:
    window = READERS[path](document, MODEL)
    assert window is None or 1_024 <= window <= 10_000_000
