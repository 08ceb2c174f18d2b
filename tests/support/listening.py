"""A gateway in this process, beside the workers of a rig."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_worker.gateway.listening import GatewayListener, list_listened_accounts
from support.rig import Rig


@contextmanager
def listening(rig: Rig) -> Iterator[None]:
    stopping = threading.Event()
    listener = GatewayListener(rig.client, list_listened_accounts(rig.client.settings), name="gw", alive_file=None)
    thread = threading.Thread(target=listener.run, args=(stopping,))
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
