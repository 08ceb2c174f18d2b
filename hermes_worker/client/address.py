"""The address of an API server, and the key for it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hermes_worker import __version__
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import TENANT_HEADER, USER_HEADER

READ_TIMEOUT_S = 60.0
"""Longer than the server's pauses between signs of life, and than a request that waits."""
CONNECT_TIMEOUT_S = 10.0
_KEY = re.compile(r"[!-~]{1,1000}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """One API server."""

    url: str
    key: str | None = field(repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    acting: Mapping[str, str] = field(default_factory=dict)
    """Headers that name the tenant and the user for whom the holder of the installation's key acts."""

    @property
    def place(self) -> str:
        """The server's name in errors."""
        return self.url

    def build_options(self) -> dict[str, Any]:
        """Build the options of a client of httpx2, of either kind. Imports httpx2."""
        import httpx2

        return {
            "base_url": self.url,
            "headers": self.build_headers(),
            "timeout": httpx2.Timeout(READ_TIMEOUT_S, connect=CONNECT_TIMEOUT_S),
            "verify": self.tls or True,
        }

    def build_headers(self) -> dict[str, str]:
        """Build the headers of every request."""
        headers = {"User-Agent": f"hermes-worker/{__version__}", **self.acting}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        return headers


def build_acting_headers(tenant: str | None, user: str | None) -> dict[str, str]:
    """Build the headers for ``Address.acting``."""
    said = {TENANT_HEADER: tenant, USER_HEADER: user}
    return {name: quote(text, safe="") for name, text in said.items() if text is not None}


def build_address(
    base_url: str,
    api_key: str | None,
    home: Path | None,
    tls: ssl.SSLContext | None,
    *,
    acting: Mapping[str, str] | None = None,
) -> Address:
    """Build the address. Without ``api_key`` the key of the installation in ``home`` is used, for a server of this
    machine or for a ``home`` that was named. Raises ``ConfigurationError``."""
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"{remove_user(base_url)!r} is no address of a server: write http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise ConfigurationError(f"{remove_user(base_url)!r} bears a password; give the key by itself, not in the URL")
    if api_key is None:
        api_key = _find_key(parts.hostname, home)
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise ConfigurationError("the API key is no key: it has spaces, line breaks or other signs that no key has")
    return Address(url=base_url.rstrip("/"), key=api_key, tls=tls, acting=acting or {})


def _find_key(host: str, home: Path | None) -> str | None:
    """Return the key of the installation in ``home``, for a server of this machine or a ``home`` that was named."""
    try:
        # Here and not above: the thin client has no settings, and a program that brings its key need not load them.
        from hermes_worker.settings import is_loopback, load_settings
        from hermes_worker.settings.server_key import find_server_key
    except ImportError:
        return None
    if home is None and not is_loopback(host):
        return None
    found = find_server_key(load_settings(home=home))
    return found.reveal() if found else None


def remove_user(url: str) -> str:
    """Remove a user and password from ``url``, so that it may be shown."""
    return re.sub(r"//[^/@]*@", "//", url)[:200]
