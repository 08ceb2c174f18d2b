"""Find the provider's words in the body of an error, in any form of body. Pure.

The forms are those of OpenAI, Google (an array at its compatible address), FastAPI (``detail``), Cloudflare
(``errors``), OpenRouter (JSON as text in ``metadata.raw``), AWS, MiniMax (``base_resp``), gateways that put one body
into the message of another, plain text and pages of HTML.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from hermes_worker.core.json_values import parse_json, read_list, read_mapping, read_text

_DEPTH_MAX = 6
_ITEMS_MAX = 3
"""How many entries of a list of complaints are quoted."""
_FIELDS = (
    "message",
    "Message",
    "msg",
    "error_description",
    "error_message",
    "errorMessage",
    "error_msg",
    "status_msg",
    "detail",
    "details",
    "errors",
    "error",
    "description",
    "reason",
    "title",
    "base_resp",
)
"""Fields that hold words, the most telling first."""
_SAYS_NOTHING = re.compile(
    r"(?:the )?(?:upstream |provider )?(?:provider |server )?(?:returned (?:an? )?)?error\.?", re.IGNORECASE
)
_NUMBERED = re.compile(r"^(?:Error code:?|status) \d{3}(?: - |: )?")
"""What SDKs put before the body, or in place of one."""
_PAGE = re.compile(r"\s*<(?:!doctype|html|head|body)\b", re.IGNORECASE)
_TITLE = re.compile(r"<title[^>]{0,200}>([^<]{1,300})", re.IGNORECASE)
_HIDDEN = re.compile(r"<(script|style|head)\b.*?(?:</\1>|\Z)", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]{0,2000}>")
_PAGE_CHARS_MAX = 200
_READ_CHARS_MAX = 65_536


def find_body(document: object) -> Mapping[str, object] | None:
    """The object that a body is, or the first in an array; a text becomes an object with that message."""
    if isinstance(document, list):
        return next((item for item in document if isinstance(item, Mapping)), None)
    if isinstance(document, str) and document.strip():
        return {"message": document}
    return document if isinstance(document, Mapping) else None


def find_words(said: object, depth: int = _DEPTH_MAX) -> str:
    """The provider's own words; empty when there are none."""
    if isinstance(said, str):
        inner = _find_json(said)
        return (find_words(inner, depth - 1) if inner is not None and depth else "") or _strip_markup(said)
    if not depth:
        return ""
    if isinstance(said, list):
        found = dict.fromkeys(words for item in said[:_ITEMS_MAX] if (words := find_words(item, depth - 1)))
        return "; ".join(found)
    return _find_words_in_object(said, depth - 1) if isinstance(said, Mapping) else ""


def _find_words_in_object(body: Mapping[str, object], depth: int) -> str:
    nested = ("error",) if isinstance(body.get("error"), Mapping | list) else ()
    own = next((words for name in (*nested, *_FIELDS) if (words := find_words(body.get(name), depth))), "")
    if not own:  # lists of messages by the name of the wrong field (Laravel, Rails)
        lists = {name: find_words(each, depth) for name, each in body.items() if isinstance(each, list)}
        own = "; ".join(f"{name}: {words}" for name, words in lists.items() if words)
    if place := ".".join(str(part) for part in read_list(body.get("loc"))):
        own = f"{place}: {own}"
    metadata = read_mapping(body.get("metadata"))
    upstream = find_words(metadata.get("raw"), depth)
    if not upstream or upstream in own:
        return own
    name = read_text(metadata.get("provider_name"))
    told = f"{name}: {upstream}" if name else upstream
    return told if not own or _SAYS_NOTHING.fullmatch(own) else f"{own} ({told})"


def clean_error_text(text: str) -> str:
    """The words of an error that is only text: without its number, and without the markup of a page."""
    return find_words(_NUMBERED.sub("", text, count=1))


def _find_json(text: str) -> object | None:
    if not text.lstrip().startswith(("{", "[")) or len(text) > _READ_CHARS_MAX:
        return None
    found = parse_json(text)
    return found if isinstance(found, Mapping | list) else None


def _strip_markup(text: str) -> str:
    if not _PAGE.match(text):
        return text.strip()
    page = text[:_READ_CHARS_MAX]
    title = _TITLE.search(page)
    shown = " ".join(_TAG.sub(" ", _HIDDEN.sub(" ", page)).split())
    heading = " ".join(title[1].split()) if title else ""
    if heading and not shown.startswith(heading):
        shown = f"{heading}: {shown}" if shown else heading
    return shown[:_PAGE_CHARS_MAX]
