"""The words in which servers refuse what is too long, as they were seen, and the numbers that are read from them.

Sources: issues and pull requests of the projects named beside each (``owner/name#number``), and, for TGI, the text in
its ``router/src/validation.rs``; all read in November 2026. Where a quotation holds no numbers, none are made up.
"""

from __future__ import annotations

import pytest

from hermes_worker.core.errors import FailureKind
from hermes_worker.core.recovery.classify import RawError, classify
from hermes_worker.core.recovery.reported_limits import (
    parse_available_output_tokens,
    parse_context_limit,
    require_plausible_window,
)

SEEN = [
    # vLLM: vllm-project/vllm#20409 (2025-07), xorbitsai/inference#3785 (2025-07), EleutherAI/lm-evaluation-harness#2880
    # (2025-04), harbor-framework/harbor#996 (2026-03, from 0.16 on)
    (
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 in the "
        "messages, 10000 in the completion). Please reduce the length of the messages or completion.",
        16_384,
    ),
    ("The decoder prompt (length 17772) is longer than the maximum model length of 16384.", 16_384),
    ("Prompt length of 2049 is longer than the maximum model length of 2048.", 2_048),
    (
        "You passed 131073 input tokens and requested 0 output tokens. However, the model's context length is only "
        "131072 tokens, resulting in a maximum input length of 131072 tokens. Please reduce the length of the input "
        "prompt. (parameter=input_tokens, value=131073)",
        131_072,
    ),
    # LM Studio: lmstudio-ai/lmstudio-bug-tracker#546 (2025-03), anomalyco/opencode#11141 (2026-01),
    # lmstudio-ai/lmstudio-bug-tracker#1251 (2025-11)
    (
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded with context "
        "length of only 32768 tokens, which is not enough. Try to load the model with a larger context length, or "
        "provide a shorter input",
        32_768,
    ),
    ("Cannot truncate prompt with n_keep (15028) >= n_ctx (7424)", 7_424),
    (
        "Reached context length of 4096 tokens with model (arch: qwen3vlmoe) that does not currently support "
        "mid-generation context overflow. Try reloading with a larger context length or shortening the prompt/chat.",
        4_096,
    ),
    # llama-server: ggml-org/llama.cpp#15780 (2025-09; the number is in a field), #16486 (2025-10); llama-cpp-python:
    # fedora-copr/logdetective#100 (2025-01), gokayfem/ComfyUI_VLM_nodes#81 (2024-06)
    (
        "the request exceeds the available context size. try increasing the context size or enable context shift",
        None,
    ),
    ("request (14429 tokens) exceeds the available context size (8192 tokens), try increasing it", 8_192),
    ("Requested tokens (2138) exceed context window of 2048", 2_048),
    ("Prompt exceeds n_ctx: 2892 > 2048", 2_048),
    # Gemini: google-gemini/gemini-cli#6678 (2025-08), #27197 (2026-05)
    ("The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).", 1_048_576),
    ("The input token count (81881) exceeds the maximum number of tokens allowed (65536).", 65_536),
    # xAI: cline/cline#3120 (2025-04)
    ("This model's maximum prompt length is 131072 but the request contains 136973 tokens.", 131_072),
    # Text Generation Inference: huggingface/chat-ui#340 (2023-07), huggingface/text-generation-inference#937 (2023-08)
    ("Input validation error: `inputs` must have less than 1024 tokens. Given: 1872", 1_024),
    (
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and "
        "1024 `max_new_tokens`",
        4_096,
    ),
    # DashScope: QwenLM/qwen-code#98 (2025-07), QwenLM/qwen-code#2068 (2026-03)
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 204800]", 204_800),
    ("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]", 983_616),
    # Cerebras: cline/cline#5140 (2025-07), anomalyco/opencode#1551 (2025-08)
    ("Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000", 40_000),
    ("Please reduce the length of the messages or completion. Current length is 69553 while limit is 65536", 65_536),
]


@pytest.mark.parametrize(("said", "window"), SEEN, ids=range(len(SEEN)))
def test_what_servers_say_is_an_overflow_with_its_window(said: str, window: int | None) -> None:
    found = classify(RawError(status=422 if "`inputs`" in said else 400, message=said))
    assert (found.kind, found.context_limit, parse_context_limit(said)) == (
        FailureKind.CONTEXT_OVERFLOW,
        window,
        window,
    )


@pytest.mark.parametrize("size", [400, None])
def test_llama_server_states_its_window_in_a_field(size: int | None) -> None:
    """ggml-org/llama.cpp#15780 and oobabooga/textgen#7257 (October 2025): sometimes inside a stream."""
    error = {
        "code": 400,
        "message": "the request exceeds the available context size. try increasing the context size",
        "type": "exceed_context_size_error",
        "n_prompt_tokens": 14_429,
        "n_ctx": 8_192,
    }
    found = classify(RawError(status=size, message="Error code: 400", body={"error": error}))
    assert (found.kind, found.context_limit) == (FailureKind.CONTEXT_OVERFLOW, 8_192)


@pytest.mark.parametrize(
    ("said", "room"),
    [
        (
            "You passed 98305 input tokens and requested 32768 output tokens. However, the model's context length is "
            "only 131072 tokens, resulting in a maximum input length of 98304 tokens.",
            32_767,
        ),
        (
            "You passed 131000 input tokens and requested 32768 output tokens. However, the model's context length is "
            "only 131072 tokens, resulting in a maximum input length of 98304 tokens.",
            None,
        ),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 1000 `inputs` tokens and 4096 `x`", 3_096),
        ("`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 1024 `x`", None),
    ],
)
def test_room_for_an_answer_is_told_from_an_input_that_fills_the_window(said: str, room: int | None) -> None:
    assert parse_available_output_tokens(said) == room


@pytest.mark.parametrize(
    ("value", "window"), [(8_192, 8_192), (0, None), (-1, None), (True, None), ("8192", None), (10**12, None)]
)
def test_a_window_that_makes_no_sense_is_none(value: object, window: int | None) -> None:
    assert require_plausible_window(value) == window
