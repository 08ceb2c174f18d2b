"""URLs that may name several servers, such as ``postgresql://u:p@a:1,[::1]:2/db``. Pure.

``urllib`` is not asked: since 2025 its releases refuse brackets behind a comma, and each in another way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

_URL = re.compile(
    r"(?:(?:(?P<scheme>[^:/?#]+):)?//(?P<place>[^/?#]*))?(?P<path>[^?#]*)(?:\?(?P<query>[^#]*))?(?:\#.*)?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersUrl:
    """The parts of such a URL, as they are written there. Holds a password."""

    scheme: str
    who: str
    """User and password; empty for none."""
    servers: tuple[str, ...]
    path: str
    query: str

    @property
    def user(self) -> str | None:
        return unquote(self.who.partition(":")[0]) or None

    @property
    def password(self) -> str | None:
        return unquote(self.who.partition(":")[2]) or None


def parse_servers_url(url: str) -> ServersUrl:
    """Takes any text; what is no URL has no scheme."""
    found = _URL.fullmatch(url)
    assert found is not None  # the library's type: every part of the pattern may be empty
    who, _, servers = (found["place"] or "").rpartition("@")
    return ServersUrl(
        scheme=(found["scheme"] or "").lower(),
        who=who,
        servers=tuple(servers.split(",")),
        path=found["path"],
        query=found["query"] or "",
    )
