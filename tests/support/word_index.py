"""An index of words for a single text, as the database has one for all."""

from __future__ import annotations

from collections.abc import Collection

from hermes_worker.core.search_queries import IndexFilter, WantedWord


def matches_words(filters: Collection[IndexFilter], words: Collection[str]) -> bool:
    """Do what an index does, for a single text: whether ``filters`` find it."""

    def has(wanted: WantedWord) -> bool:
        if wanted.is_prefix:
            return any(word.startswith(wanted.word) for word in words)
        return wanted.word in words

    return any(all(map(has, each.all_of)) and not any(map(has, each.none_of)) for each in filters)
