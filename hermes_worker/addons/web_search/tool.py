"""The tool ``web_search``."""

from __future__ import annotations

from typing import Annotated, Final

from hermes_worker.addons.http_json import AddonFailed, request_service
from hermes_worker.addons.web_search.providers import SearchProvider, choose_providers, render_hits
from hermes_worker.addons.web_search.settings import WebSearchSettings
from hermes_worker.agent.tools.functions import ToolFailed, tool

_TOTAL_S: Final = 20.0
_BYTES_MAX: Final = 4_000_000
_LIMIT_MAX: Final = 20
_QUERY_CHARS_MAX: Final = 1_000


@tool(replay="pure", toolset="web", timeout_s=90, is_parallel_safe=True)
def web_search(
    query: Annotated[str, "What to look for."],
    settings: WebSearchSettings,
    limit: Annotated[int, "How many results, 1 to 20."] = 5,
) -> dict[str, object]:
    """Search the web. Gives titles, addresses and excerpts; read a page with web_extract."""
    query = " ".join(query.split())
    if not 0 < len(query) <= _QUERY_CHARS_MAX:
        raise ToolFailed(f"give a query of 1 to {_QUERY_CHARS_MAX} characters")
    asked = choose_providers(settings)
    if not asked:
        raise ToolFailed(f"web search is not set up: HERMES_WEB_SEARCH_PROVIDER is {settings.provider} and has no key")
    failures = []
    for provider in asked:
        try:
            return _search_with(provider, settings, query, min(max(limit, 1), _LIMIT_MAX))
        except AddonFailed as error:
            failures.append(str(error))
    raise ToolFailed("; ".join(failures))


def _search_with(provider: SearchProvider, settings: WebSearchSettings, query: str, limit: int) -> dict[str, object]:
    """Send the query to one provider and return its results. Raises ``AddonFailed``."""
    address = (provider.url(settings) or provider.address).rstrip("/")
    request = provider.request(address, provider.key(settings) or "", query, limit)
    is_ours = provider.url(settings) is not None
    answer = request_service(
        provider.label, request, total_s=_TOTAL_S, body_bytes_max=_BYTES_MAX, allows_private=is_ours
    )
    if provider.name == "duckduckgo" and answer.status != 200:
        raise AddonFailed("DuckDuckGo takes us for a robot and shows no results; set the key of another provider")
    found = render_hits(provider.hits(answer), limit)
    return {"success": True, "provider": provider.name, "data": {"web": found}}
