"""pydantic-graph 2: a graph without persistence. Version 1 could store its state; version 2 claims no resume at all."""

from __future__ import annotations

from agent import stop_unclaimed

stop_unclaimed()
