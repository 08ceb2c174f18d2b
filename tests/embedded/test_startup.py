"""How a role hears that it is to leave."""

from __future__ import annotations

import os
import signal
import threading

from support.patience import PATIENCE_S

from hermes_worker.local.startup import LEAVING_SIGNALS, set_at_signal


def test_a_signal_that_interrupts_the_wait_for_the_event_is_heard() -> None:
    """A host of browsers that was suspended in its wait did not leave when it was continued and told to."""
    before = {number: signal.getsignal(number) for number in LEAVING_SIGNALS}
    stopping = threading.Event()
    try:
        set_at_signal(stopping)
        with stopping._cond:  # as the main thread holds it at the end of each wait
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopping.wait(PATIENCE_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
