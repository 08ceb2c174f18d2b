"""The page for people, at ``/``: files of this package that a browser runs. They use the public API and nothing else.

A page that holds a login is worth attacking. So its host name must be one that we know (a stranger's name may resolve
to this machine), no other page may frame it, and it runs no script but its own files and makes no HTML from text.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import ipaddress
import re
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.errors import ApiError
from hermes_worker.settings import ServerSettings

COOKIE = "hermes_page"
"""The cookie that holds the token of a login."""
LOGIN_PATH = "/v1/page/login"
"""The path at which a browser exchanges a key for a login."""
FILES = "/web/"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_SCRIPT = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
_AUTHORITY = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\[\]/@]+))(?::\d{1,5})?")


@dataclass(frozen=True, slots=True)
class _PageFile:
    content: bytes
    packed: bytes
    """The content, compressed with gzip."""
    kind: str
    tag: str
    """The ETag: it changes with the content."""


@cache
def load_page_files() -> dict[str, _PageFile]:
    """Read all files of the page, by path; the page itself is ``/``."""
    found = dict(_list_files_below(resources.files("hermes_worker") / "web", FILES))
    return {"/" if path == f"{FILES}index.html" else path: file for path, file in found.items()}


def _list_files_below(folder: Traversable, prefix: str) -> list[tuple[str, _PageFile]]:
    found: list[tuple[str, _PageFile]] = []
    for each in folder.iterdir():
        kind = _KINDS.get(each.name[each.name.rfind(".") :]) if "." in each.name else None
        if each.is_dir():
            found += _list_files_below(each, f"{prefix}{each.name}/")
        elif kind is not None:
            content = each.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            packed = gzip.compress(content, mtime=0)
            found.append((f"{prefix}{each.name}", _PageFile(content, packed, kind, tag)))
    return found


@cache
def build_page_policy() -> str:
    """Build the Content-Security-Policy of the page: its own files and the API, one inline map of its modules by hash,
    and no way from a text to HTML."""
    [inline] = _SCRIPT.findall(load_page_files()["/"].content.decode("utf-8"))
    digest = base64.b64encode(hashlib.sha256(inline.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; script-src 'self' 'sha256-{digest}'; style-src 'self'; connect-src 'self'; "
        "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


class PageFiles:
    """ASGI middleware that answers requests for the page's files."""

    def __init__(self, app: ASGIApp, *, hosts: PageHosts) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        file = load_page_files().get(scope["path"]) if scope["type"] == "http" else None
        if file is None or scope["method"] not in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if not self._hosts.is_known(headers):
            await _foreign_host().response(scope, receive, send)
            return
        kept = {
            "Cache-Control": "no-cache",
            "ETag": file.tag,
            "Content-Security-Policy": build_page_policy(),
            "Vary": "Accept-Encoding",
        }
        if headers.get("if-none-match") == file.tag:
            await Response(status_code=304, headers=kept)(scope, receive, send)
            return
        content = file.content
        if "gzip" in headers.get("accept-encoding", ""):
            content, kept["Content-Encoding"] = file.packed, "gzip"
        content = content if scope["method"] == "GET" else b""
        kept |= {"Content-Type": file.kind, "Cross-Origin-Opener-Policy": "same-origin"}
        await Response(content, headers=kept)(scope, receive, send)


def _foreign_host() -> ApiError:
    message = (
        "The page is not served under this name. If the name is yours, add it to server.page_hosts "
        "(HERMES_SERVER_PAGE_HOSTS)."
    )
    return ApiError(421, message, code="foreign_host")


class PageHosts:
    """The names under which browsers may use the page, and the check that a request is the page's own."""

    def __init__(self, server: ServerSettings) -> None:
        self.is_served = server.page
        self._names = frozenset({"localhost", server.host.lower(), *server.page_hosts})

    def is_known(self, headers: Headers) -> bool:
        """Whether ``Host`` is an address or one of our names. A stranger cannot make an address lead here that does not
        lead here anyway."""
        hosts = headers.getlist("host")
        match = _AUTHORITY.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None:
            return False
        host = (match["six"] or match["host"]).lower()
        return host in self._names or host.endswith(".localhost") or _is_address(host)

    def is_own(self, headers: Headers) -> bool:
        """Whether the page itself sent a request that names its sender. A browser lets no script forge that."""
        if not self.is_served or not self.is_known(headers):
            return False
        origins, site = headers.getlist("origin"), headers.get("sec-fetch-site")
        if site is not None:
            return site == "same-origin" and len(origins) <= 1
        # Over plain HTTP browsers say no more than this.
        return len(origins) == 1 and urlsplit(origins[0]).netloc == headers.get("host")

    def may_use_login(self, headers: Headers, method: str) -> bool:
        """Whether a request with the page's cookie is let in. One that changes something must come from the page
        itself; one that reads may name no sender, as when a person opens its address."""
        if self.is_own(headers):
            return True
        says_nothing = "origin" not in headers and headers.get("sec-fetch-site", "none") == "none"
        return self.is_served and self.is_known(headers) and says_nothing and method in ("GET", "HEAD")


def read_login(headers: Headers) -> str | None:
    """Read the token of a login from a request's cookie."""
    found = [
        value.strip()
        for line in headers.getlist("cookie")
        for name, _, value in (part.partition("=") for part in line.split(";"))
        if name.strip() == COOKIE
    ]
    return found[0] if len(found) == 1 and found[0] else None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
