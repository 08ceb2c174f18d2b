"""A token server with single-use refresh tokens: one that sees a token twice revokes everything that came of it."""

from __future__ import annotations

import threading
from urllib.parse import parse_qs

from support.fault_server import FaultServer, Received, Reply


class TokenServer:
    """Serves on loopback until the block ends. ``SEED`` is the token that a person got by signing in."""

    SEED = "refresh-seed-0123456789abcdef"

    def __init__(self, *, lifetime_s: int | None = 3600, rotates: bool = True) -> None:
        self._server = FaultServer(self._answer)
        self._lock = threading.Lock()
        self._lifetime_s = lifetime_s
        self._rotates = rotates
        self.current = self.SEED
        self.exchanges = 0
        self.is_burnt = False
        """A spent token was shown again."""
        self.gate: threading.Event | None = None
        """While it is set to an event, an exchange is made, and its answer waits for the event."""
        self.refusals: list[tuple[int, object]] = []
        """Answers to the next requests, without an exchange."""
        self.drops = 0
        """Connections that are closed next, after the exchange was made."""

    def __enter__(self) -> TokenServer:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    @property
    def url(self) -> str:
        return self._server.base_url.removesuffix("/v1") + "/token"

    @property
    def requests(self) -> list[Received]:
        return self._server.requests

    @property
    def access_token(self) -> str:
        """The one that is good now."""
        return f"access-{self.exchanges}-fedcba9876543210"

    def _answer(self, request: Received, reply: Reply) -> None:
        fields = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        with self._lock:
            if self.refusals:
                reply.document(*self.refusals.pop(0))
                return
            if fields.get("grant_type") != "refresh_token" or self.is_burnt:
                reply.document(400, {"error": "invalid_grant"})
                return
            if fields["refresh_token"] != self.current:
                self.is_burnt = True
                reply.document(400, {"error": "invalid_grant", "error_description": f"reuse of {self.current}"})
                return
            self.exchanges += 1
            document: dict[str, object] = {"access_token": self.access_token, "token_type": "Bearer"}
            if self._lifetime_s is not None:
                document["expires_in"] = self._lifetime_s
            if self._rotates:
                self.current = f"refresh-{self.exchanges}-0123456789abcdef"
                document["refresh_token"] = self.current
            is_dropped, self.drops = self.drops > 0, max(0, self.drops - 1)
        if self.gate is not None:
            self.gate.wait(30)
        if is_dropped:
            reply.close()
            return
        reply.document(200, document)
