"""An MCP server that wants a login, and the authorization server that issues its tokens, on one loopback port.

It follows the RFCs that MCP's authorization names (9728, 8414, 7591, 6749, 7636, 8707). Refresh tokens are good once.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

TOOL: dict[str, Any] = {"name": "sell", "description": "Sell pieces.", "inputSchema": {"type": "object"}}


class SignInServer:
    """Serves until the block ends. ``resource`` and ``issuer`` are its documents, for tests that change them."""

    def __init__(self, *, gives_refresh: bool = True) -> None:
        self.gives_refresh = gives_refresh
        self.lock = threading.Lock()
        self.access: set[str] = set()
        self.refresh: set[str] = set()
        self.spent: set[str] = set()
        self.codes: dict[str, dict[str, str]] = {}
        self.made = 0
        self.scopes: dict[str, str] = {}
        """What was asked for, by access token."""
        self.needs = ""
        """The scope without which a tool is not called."""
        self.calls: list[str] = []
        self.asked: list[dict[str, str]] = []
        """What the token endpoint was asked with."""
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.origin}/mcp"
        self.resource: dict[str, Any] = {
            "resource": self.url, "authorization_servers": [self.origin], "scopes_supported": ["sell"],
        }  # fmt: skip
        self.issuer: dict[str, Any] = {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize?tenant=x",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            "scopes_supported": ["sell", "offline_access"],
            "authorization_response_iss_parameter_supported": True,
        }

    def __enter__(self) -> SignInServer:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tokens(self, scope: str = "") -> dict[str, Any]:
        self.made += 1
        access, refresh = f"access-{self.made}-0123456789", f"refresh-{self.made}-0123456789"
        self.scopes = {access: scope or next(iter(self.scopes.values()), "")}
        self.access, self.refresh = {access}, {refresh}
        said: dict[str, Any] = {"access_token": access, "token_type": "Bearer", "expires_in": 3600}
        return {**said, "refresh_token": refresh} if self.gives_refresh else said

    def exchanged(self, said: dict[str, str]) -> tuple[int, dict[str, Any]]:
        self.asked.append(said)
        if said.get("resource") != self.url:
            return 400, {"error": "invalid_target"}
        if said.get("grant_type") == "refresh_token":
            token = said.get("refresh_token", "")
            if token in self.spent:
                self.access, self.refresh = set(), set()
            if token not in self.refresh:
                return 400, {"error": "invalid_grant"}
            self.spent.add(token)
            return 200, self.tokens()
        known = self.codes.pop(said.get("code", ""), None)
        digest = hashlib.sha256(said.get("code_verifier", "").encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        wanted = ("code_challenge", "redirect_uri", "client_id")
        shown = {"code_challenge": challenge, **{name: said.get(name) for name in wanted[1:]}}
        if known is None or any(known.get(name) != shown[name] for name in wanted):
            return 400, {"error": "invalid_grant"}
        return 200, self.tokens(known.get("scope", ""))

    def approved(self, query: dict[str, str]) -> str:
        """Where somebody who approves is sent."""
        code = f"code-{len(self.codes)}"
        self.codes[code] = query
        said = {"code": code, "state": query["state"], "iss": self.origin}
        return f"{query['redirect_uri']}?{urlencode(said)}"


def _handler(owner: SignInServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/.well-known/oauth-protected-resource/mcp" and owner.resource:
                self._json(200, owner.resource)
            elif parts.path == "/.well-known/oauth-authorization-server" and owner.issuer:
                self._json(200, owner.issuer)
            elif parts.path == "/authorize":
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                self.send_response(302)
                self.send_header("Location", owner.approved(query))
                self.end_headers()
            else:
                self._json(404, {})

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            with owner.lock:
                if self.path == "/token":
                    said = {name: values[0] for name, values in parse_qs(body.decode()).items()}
                    self._json(*owner.exchanged(said))
                elif self.path == "/register":
                    self._json(201, {**json.loads(body), "client_id": "client-1"})
                else:
                    self._call(json.loads(body))

        def _call(self, said: dict[str, Any]) -> None:
            token = (self.headers.get("authorization") or "").removeprefix("Bearer ")
            if token not in owner.access:
                self._json(401, {}, **{"WWW-Authenticate": 'Bearer scope="sell"'})
                return
            if said["method"] == "tools/call" and owner.needs not in [*owner.scopes[token].split(), ""]:
                lacking = f'Bearer error="insufficient_scope", scope="{owner.needs}"'
                self._json(403, {}, **{"WWW-Authenticate": lacking})
                return
            owner.calls.append(said["method"])
            result = (
                {"tools": [TOOL]} if said["method"] == "tools/list" else {"content": [{"type": "text", "text": "x"}]}
            )
            self._json(200, {"jsonrpc": "2.0", "id": 1, "result": result})

        def _json(self, status: int, document: dict[str, Any], **headers: str) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


def approve(address: str) -> str:
    """What a person's browser does: opens the address, and says where it led."""
    try:
        urllib.request.build_opener(_NoRedirect).open(address, timeout=20)
    except urllib.error.HTTPError as answer:
        return str(answer.headers["Location"])
    raise AssertionError("nobody was sent back")
