"""What the API's ASGI middleware is made of."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Send


class Middleware:
    """ASGI middleware around ``app``. Subclasses are called with scope, receive and send."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app


def change_headers(send: Send, change: Callable[[MutableHeaders], None]) -> Send:
    """Return a ``send`` that has ``change`` edit the headers of the answer before they leave."""

    async def send_changed(message: Message) -> None:
        if message["type"] == "http.response.start":
            change(MutableHeaders(scope=message))
        await send(message)

    return send_changed
