"""A provider that is asked with the access token of a login."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from hermes_worker.core.logins import Grant, Login
from hermes_worker.core.messages import ModelReply, ModelRequest
from hermes_worker.models.base import Abort, OnDelta
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.factory import get_shared_provider


class TokenSource(Protocol):
    """Supplies access tokens. Implemented by ``hermes_worker.models.logins.LoginTokens``."""

    def get_token(self, login: Login, abort: Abort) -> Grant: ...

    def renew_token(self, login: Login, refused: int, abort: Abort) -> Grant: ...


class LoginProvider:
    """``Provider`` for one route of one call: it remembers which token it used, so that a refusal is about that one."""

    def __init__(self, wire: str, endpoint: Endpoint, login: Login, grants: TokenSource) -> None:
        self._wire = wire
        self._endpoint = endpoint
        self._login = login
        self._grants = grants
        self._used = 0

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """Ask the model (``Provider.ask``), with a token that is renewed first if its time is over."""
        grant = self._grants.get_token(self._login, abort)
        self._used = grant.version
        endpoint = replace(self._endpoint, api_key=grant.access_token, is_access_token=True)
        return get_shared_provider(self._wire, endpoint).ask(request, on_delta=on_delta, abort=abort)

    def renew(self, abort: Abort) -> None:
        """Get another token than the one that was refused. Raises ``ModelCallError`` when there is none."""
        self._grants.renew_token(self._login, self._used, abort)
