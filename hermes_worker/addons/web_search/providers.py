"""Search engines as rows: how each is asked, and where in its answer the results are. Pure.

The requests are those of each vendor's public documentation (October 2026): docs.exa.ai/reference/search,
docs.tavily.com (search), docs.firecrawl.dev (v2 search), docs.parallel.ai (v1 search), api-dashboard.search.brave.com
(web search), docs.searxng.org (search API). DuckDuckGo has no interface for programs; its page without scripts is read.
None of them was tried live.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from hermes_worker.addons.http_json import build_json_post, find_rows, parse_json
from hermes_worker.addons.web_search.settings import WebSearchSettings
from hermes_worker.core.json_values import read_text
from hermes_worker.net.http import HttpRequest, HttpResponse

_EXCERPT_CHARS_MAX: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """One result."""

    title: str
    url: str
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchProvider:
    """A search engine."""

    name: str
    label: str
    """The name for messages."""
    address: str
    """The address of its API; empty for one whose address the operator sets."""
    key: Callable[[WebSearchSettings], str | None]
    """Returns what it needs to be asked: a key, or an address; ``None`` when that is not set."""
    url: Callable[[WebSearchSettings], str | None]
    """An address of the operator's that takes the place of ``address``."""
    request: Callable[[str, str, str, int], HttpRequest]
    """Builds the request from address, key, query and limit."""
    hits: Callable[[HttpResponse], Iterable[SearchHit]]
    """Reads the results of an answer. Raises ``AddonFailed``."""


def _find_no_gap(settings: WebSearchSettings) -> str | None:
    return None


def _build_hit(row: Mapping[str, Any], *descriptions: str) -> SearchHit:
    said = next((row[name] for name in descriptions if row.get(name)), "")
    if isinstance(said, list):
        said = " ... ".join(read_text(piece) for piece in said)
    return SearchHit(title=read_text(row.get("title")), url=read_text(row.get("url")), description=read_text(said))


def _make_key_lookup(name: str) -> Callable[[WebSearchSettings], str | None]:
    return lambda settings: getattr(settings, name)


def _build_exa_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    wanted = {"query": query, "numResults": limit, "contents": {"highlights": True}}
    return build_json_post(f"{url}/search", wanted, {"x-api-key": key})


def _build_tavily_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    return build_json_post(f"{url}/search", {"query": query, "max_results": limit}, {"Authorization": f"Bearer {key}"})


def _build_firecrawl_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    return build_json_post(f"{url}/v2/search", {"query": query, "limit": limit}, {"Authorization": f"Bearer {key}"})


def _build_parallel_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    wanted = {"search_queries": [query], "objective": query, "advanced_settings": {"max_results": limit}}
    return build_json_post(f"{url}/v1/search", wanted, {"x-api-key": key})


def _build_brave_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    asked = urlencode({"q": query, "count": min(limit, 20)})
    headers = {"X-Subscription-Token": key, "Accept": "application/json"}
    return HttpRequest(method="GET", url=f"{url}/res/v1/web/search?{asked}", headers=headers)


def _build_searxng_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    asked = urlencode({"q": query, "format": "json"})
    return HttpRequest(method="GET", url=f"{url}/search?{asked}", headers={"Accept": "application/json"})


def _build_duckduckgo_request(url: str, key: str, query: str, limit: int) -> HttpRequest:
    return HttpRequest(method="GET", url=f"{url}/html/?{urlencode({'q': query})}", headers={"Accept": "text/html"})


def _list_reader(label: str, path: Sequence[str], *descriptions: str) -> Callable[[HttpResponse], Iterable[SearchHit]]:
    return lambda answer: [_build_hit(row, *descriptions) for row in find_rows(parse_json(label, answer), *path)]


def _read_duckduckgo(answer: HttpResponse) -> Iterable[SearchHit]:
    reader = _DuckPage()
    reader.feed(answer.body.decode("utf-8", "replace"))
    reader.close()
    return reader.hits


class _DuckPage(HTMLParser):
    """DuckDuckGo's page: an ``a.result__a`` for each result, with its excerpt in a ``.result__snippet``."""

    def __init__(self) -> None:
        super().__init__()
        self.hits: list[SearchHit] = []
        self._into: str | None = None
        self._tag = ""
        self._url = ""
        self._title = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        classes = (given.get("class") or "").split()
        for wanted in ("result__a", "result__snippet"):
            if wanted in classes:
                self._into, self._tag, self._text = wanted, tag, []
                if wanted == "result__a":
                    self._url = _find_target(given.get("href") or "")

    def handle_data(self, data: str) -> None:
        if self._into is not None:
            self._text.append(data)

    def handle_endtag(self, tag: str) -> None:
        if self._into is None or tag != self._tag:
            return
        text = " ".join("".join(self._text).split())
        if self._into == "result__a":
            self._title = text
            self.hits.append(SearchHit(title=text, url=self._url, description=""))
        elif self.hits and not self.hits[-1].description:
            self.hits[-1] = SearchHit(title=self.hits[-1].title, url=self.hits[-1].url, description=text)
        self._into = None


def _find_target(href: str) -> str:
    """The target of a link of DuckDuckGo's, which goes by way of its own counter; empty for an advertisement."""
    parts = urlsplit(f"https:{href}" if href.startswith("//") else href)
    if parts.path.startswith("/y.js"):
        return ""
    if (parts.hostname or "").endswith("duckduckgo.com") and parts.path.startswith("/l/"):
        return next(iter(parse_qs(parts.query).get("uddg", [])), "")
    return href


PROVIDERS: Final[Mapping[str, SearchProvider]] = MappingProxyType(
    {
        row.name: row
        for row in (
            SearchProvider(
                name="exa",
                label="Exa",
                address="https://api.exa.ai",
                key=_make_key_lookup("exa_key"),
                url=_find_no_gap,
                request=_build_exa_request,
                hits=_list_reader("Exa", ("results",), "highlights", "summary", "text"),
            ),
            SearchProvider(
                name="tavily",
                label="Tavily",
                address="https://api.tavily.com",
                key=_make_key_lookup("tavily_key"),
                url=_find_no_gap,
                request=_build_tavily_request,
                hits=_list_reader("Tavily", ("results",), "content"),
            ),
            SearchProvider(
                name="firecrawl",
                label="Firecrawl",
                address="https://api.firecrawl.dev",
                key=_make_key_lookup("firecrawl_key"),
                url=_make_key_lookup("firecrawl_url"),
                request=_build_firecrawl_request,
                hits=_list_reader("Firecrawl", ("data", "web"), "description"),
            ),
            SearchProvider(
                name="parallel",
                label="Parallel",
                address="https://api.parallel.ai",
                key=_make_key_lookup("parallel_key"),
                url=_find_no_gap,
                request=_build_parallel_request,
                hits=_list_reader("Parallel", ("results",), "excerpts"),
            ),
            SearchProvider(
                name="brave",
                label="Brave Search",
                address="https://api.search.brave.com",
                key=_make_key_lookup("brave_key"),
                url=_find_no_gap,
                request=_build_brave_request,
                hits=_list_reader("Brave Search", ("web", "results"), "description"),
            ),
            SearchProvider(
                name="searxng",
                label="SearXNG",
                address="",
                key=_make_key_lookup("searxng_url"),
                url=_make_key_lookup("searxng_url"),
                request=_build_searxng_request,
                hits=_list_reader("SearXNG", ("results",), "content"),
            ),
            SearchProvider(
                name="duckduckgo",
                label="DuckDuckGo",
                address="https://html.duckduckgo.com",
                key=lambda settings: "none is needed",
                url=_find_no_gap,
                request=_build_duckduckgo_request,
                hits=_read_duckduckgo,
            ),
        )
    }
)
"""Search engines in the order in which ``auto`` asks them."""


def choose_providers(settings: WebSearchSettings) -> tuple[SearchProvider, ...]:
    """The engines to ask, one after the other until one answers. One that the operator chose is asked alone: queries go
    to no other. Empty when that one has no key.
    """
    if settings.provider != "auto":
        one = PROVIDERS[settings.provider]
        return (one,) if one.key(settings) else ()
    having = [row for row in PROVIDERS.values() if row.key(settings)]
    return tuple(having[:-1] or having)


def render_hits(hits: Iterable[SearchHit], limit: int) -> list[dict[str, object]]:
    """Results as a model sees them: web addresses only, each once, with plain texts."""
    found: dict[str, dict[str, object]] = {}
    for hit in hits:
        url = hit.url.strip()
        if _read_scheme(url) not in ("http", "https") or url in found:
            continue
        description = _to_plain_text(hit.description)[:_EXCERPT_CHARS_MAX]
        found[url] = {"title": _to_plain_text(hit.title)[:300], "url": url, "description": description}
        found[url]["position"] = len(found)
        if len(found) == limit:
            break
    return list(found.values())


def _read_scheme(url: str) -> str:
    """The scheme of an address; empty for what is none."""
    try:
        return urlsplit(url).scheme.lower() if len(url) <= 8_192 else ""
    except ValueError:
        return ""


def _to_plain_text(text: str) -> str:
    return " ".join(re.sub(r"</?(?:b|strong|em|i|mark|span)\b[^<>]{0,200}>", "", text).split())
