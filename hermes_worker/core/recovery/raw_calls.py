"""Detect tool calls that a server left in the text of a reply, in the notation that its model was trained on. Pure.

A server that has no parser for its model's calls, or was started without it, answers with the notation itself. That is
no answer, and nothing in it was executed. The notations are those of the parsers of vLLM, SGLang and llama-server, as
looked up in November 2026.
"""

from __future__ import annotations

import re

_BAR = "[|｜]"
_GAP = "[▁_ ]"
_NOTATIONS = (
    # Harmony (gpt-oss): ``<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{...}``.
    r"(?:^|[\s>|])to=functions\.[a-z_]\w*",
    # Llama and Qwen coders: ``<function=read_file>``. Hermes, Qwen and GLM: ``<tool_call>``.
    r"<function=[\w.:-]+>",
    r"<tool_calls?>\s*[\[{<\w]",
    # Claude's XML and what MiniMax and others made of it.
    r"<(?:[a-z]\w{0,15}:)?(?:function_calls|tool_call|invoke)\b[^<>]{0,200}>\s*[\[{<]",
    # DeepSeek, Kimi, Phi and Granite: ``<｜tool▁calls▁begin｜>``, ``<|tool_calls_section_begin|>``, ``<|tool_call|>``.
    rf"<{_BAR}(?:dsml{_BAR})?(?:tool|function){_GAP}?calls?\w*(?:{_GAP}\w+)*(?:{_BAR}|\s|>)",
    # Mistral, Llama 3, InternLM, Phi.
    r"\[tool_calls\]\s*[\[{\w]",
    rf"<{_BAR}(?:python_tag|plugin){_BAR}>",
    r"^\s*functools\[\s*\{",
)
_NOTATION = re.compile("|".join(_NOTATIONS), re.IGNORECASE)
_SIGNS = ("to=functions.", "<", "[", "functools[")
_CODE = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`", re.DOTALL)
"""Quoted code, in which a notation is only written about."""


def has_raw_call(text: str) -> bool:
    """Whether ``text``, apart from reasoning, holds a call in a model's own notation."""
    lowered = text.lower()
    if not any(sign in lowered for sign in _SIGNS):
        return False
    return _NOTATION.search(_CODE.sub(" ", text)) is not None
