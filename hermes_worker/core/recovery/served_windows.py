"""Ask a server for the size of a model's context window: where to ask, and how to read the answers. Pure.

Only windows in force count. The length a model was trained with says nothing about the memory of a server, so
llama-server's ``n_ctx_train``, Ollama's ``model_info`` and what LM Studio says of a model that is not loaded are not
read. Fields as in lmstudio.ai/docs (REST API v0), llama.cpp (``GET /props``, build 8681), Ollama 0.12 (``/api/ps``,
``/api/show``), TGI 2.1 (``max_total_tokens``) and, for lists of models, ``agent/model_metadata.py`` of the original, as
looked up in November 2026.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hermes_worker.core.json_values import read_mapping
from hermes_worker.core.recovery.reported_limits import require_plausible_window

_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d{1,12})\s*$", re.MULTILINE)
_MODEL_FIELDS = (
    "max_model_len",  # vLLM, SGLang
    "loaded_context_length",  # LM Studio
    "context_length",  # OpenRouter, Together, Nous; Ollama for what is loaded
    "context_window",  # Groq
    "max_input_tokens",  # Anthropic
)

Reader = Callable[[object, str], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowQuery:
    """One request to a server, and how to read its answer."""

    path: str
    """The path below the root of the server, or below the address of the API with ``is_of_api``."""
    read: Reader
    """Reads the window of the named model from the parsed answer; ``None`` when it does not say."""
    is_of_api: bool = False
    names_model: bool = False
    """The model is named in a posted document; otherwise the request has no body."""


def _read_served(document: object, model: str) -> int | None:
    """Read the window from the list of served models; a server of a single model serves it under any name."""
    entries = list(_list_entries(document))
    return _find_window(_select_model(entries, model) or (entries if len(entries) == 1 else []))


def _read_loaded(document: object, model: str) -> int | None:
    """Read the window from a list of models of which others may be loaded as well."""
    return _find_window(_select_model(_list_entries(document), model))


def _select_model(entries: Iterable[Mapping[str, object]], model: str) -> list[Mapping[str, object]]:
    names = (model, f"{model}:latest")  # Ollama's way to name a model without a tag
    return [entry for entry in entries if any(entry.get(key) in names for key in ("id", "name", "model"))]


def _find_window(entries: Iterable[Mapping[str, object]]) -> int | None:
    return next((window for entry in entries if (window := _read_window(entry)) is not None), None)


def _list_entries(document: object) -> Iterator[Mapping[str, object]]:
    listed = (
        read_mapping(document).get("data") or read_mapping(document).get("models") or document
    )  # Together: a bare list
    yield from (entry for entry in listed if isinstance(entry, Mapping)) if isinstance(listed, list) else ()


def _read_window(entry: Mapping[str, object]) -> int | None:
    return next(
        (window for name in _MODEL_FIELDS if (window := require_plausible_window(entry.get(name))) is not None), None
    )


def _read_props(document: object, _: str) -> int | None:
    """Read llama-server's answer: the window of one slot."""
    return require_plausible_window(
        read_mapping(read_mapping(document).get("default_generation_settings")).get("n_ctx")
    )


def _read_show(document: object, _: str) -> int | None:
    """Read Ollama's answer: the model's own parameter ``num_ctx``."""
    parameters = read_mapping(document).get("parameters")
    match = _NUM_CTX.search(parameters) if isinstance(parameters, str) else None
    return require_plausible_window(int(match[1])) if match else None


def _read_info(document: object, _: str) -> int | None:
    """Read the answer of Text Generation Inference."""
    return require_plausible_window(read_mapping(document).get("max_total_tokens"))


MODELS = WindowQuery(path="/models", read=_read_served, is_of_api=True)
OF_OWN_SERVERS: tuple[WindowQuery, ...] = (
    WindowQuery(path="/props", read=_read_props),
    WindowQuery(path="/api/v0/models", read=_read_loaded),
    WindowQuery(path="/api/ps", read=_read_loaded),
    WindowQuery(path="/api/show", read=_read_show, names_model=True),
    WindowQuery(path="/info", read=_read_info),
)
"""Requests to a server of the user's own, which may be llama-server, LM Studio, Ollama or TGI."""


def list_queries(*, is_own_server: bool) -> tuple[WindowQuery, ...]:
    """The requests to make, in order, until one answer holds a window."""
    return (MODELS, *OF_OWN_SERVERS) if is_own_server else (MODELS,)
