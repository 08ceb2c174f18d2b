"""The operator's settings for ``web_search``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hermes_worker.setting_groups import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSearchSettings:
    """The search engine, and the keys."""

    provider: Literal["auto", "exa", "tavily", "firecrawl", "parallel", "brave", "searxng", "duckduckgo"] = setting(
        "HERMES_WEB_SEARCH_PROVIDER",
        "Who is asked; auto asks whoever has a key here, and DuckDuckGo, which needs none, when nobody has.",
        default="auto",
    )
    exa_key: str | None = setting("EXA_API_KEY", "The key for Exa.", is_secret=True)
    tavily_key: str | None = setting("TAVILY_API_KEY", "The key for Tavily.", is_secret=True)
    firecrawl_key: str | None = setting("FIRECRAWL_API_KEY", "The key for Firecrawl.", is_secret=True)
    firecrawl_url: str | None = setting("FIRECRAWL_API_URL", "The address of a Firecrawl of one's own.")
    parallel_key: str | None = setting("PARALLEL_API_KEY", "The key for Parallel.", is_secret=True)
    brave_key: str | None = setting("BRAVE_SEARCH_API_KEY", "The key for Brave Search.", is_secret=True)
    searxng_url: str | None = setting("SEARXNG_URL", "The address of a SearXNG whose settings allow the format json.")
