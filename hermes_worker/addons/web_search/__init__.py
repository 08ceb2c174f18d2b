"""``web_search``: results of search engines."""

from __future__ import annotations

from hermes_worker.addons.web_search.settings import WebSearchSettings
from hermes_worker.addons.web_search.tool import web_search
from hermes_worker.extension import Extension
from hermes_worker.setting_groups import settings_of

EXTENSION = Extension(
    name="web_search",
    version="1",
    summary="Search the web by Exa, Tavily, Firecrawl, Parallel, Brave, SearXNG or DuckDuckGo",
    tools=(web_search,),
    settings=settings_of(WebSearchSettings),
)
