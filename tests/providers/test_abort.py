import threading

import pytest
from support.patience import PATIENCE_S

from hermes_worker.core.abort import AbortSignal


def test_it_is_unset_until_somebody_sets_it() -> None:
    signal = AbortSignal()

    assert not signal.is_set()
    assert signal.reason is None
    assert signal.wait(0) is False


def test_the_first_reason_stays() -> None:
    signal = AbortSignal()

    signal.set("cancelled")
    signal.set("lease lost")

    assert signal.is_set()
    assert signal.reason == "cancelled"


def test_setting_it_wakes_a_waiter() -> None:
    signal = AbortSignal()
    woken = threading.Event()

    def wait_for_it() -> None:
        if signal.wait(5):
            woken.set()

    thread = threading.Thread(target=wait_for_it)
    thread.start()

    signal.set("cancelled")

    thread.join(PATIENCE_S)
    assert woken.is_set()


def test_callbacks_run_once_and_in_order() -> None:
    signal = AbortSignal()
    seen: list[int] = []
    for number in range(3):
        signal.on_abort(lambda number=number: seen.append(number))  # type: ignore[misc]

    signal.set("cancelled")
    signal.set("cancelled")

    assert seen == [0, 1, 2]


def test_a_callback_added_too_late_runs_at_once() -> None:
    signal = AbortSignal()
    signal.set("cancelled")
    seen: list[str | None] = []

    signal.on_abort(lambda: seen.append(signal.reason))

    assert seen == ["cancelled"]


def test_a_failing_callback_is_logged_and_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    signal = AbortSignal()
    seen: list[str] = []

    def fail() -> None:
        raise RuntimeError("broken callback")

    signal.on_abort(fail)
    signal.on_abort(lambda: seen.append("second"))
    signal.set("cancelled")

    assert seen == ["second"]
    assert "broken callback" in caplog.text


def test_a_callback_may_add_another_callback() -> None:
    signal = AbortSignal()
    seen: list[str] = []

    signal.on_abort(lambda: signal.on_abort(lambda: seen.append("inner")))
    signal.set("cancelled")

    assert seen == ["inner"]


def test_every_callback_runs_exactly_once_when_registering_races_with_setting() -> None:
    for _ in range(50):
        signal = AbortSignal()
        seen: list[int] = []
        start = threading.Barrier(5)

        def register(
            number: int, signal: AbortSignal = signal, seen: list[int] = seen, start: threading.Barrier = start
        ) -> None:
            start.wait()
            signal.on_abort(lambda: seen.append(number))

        threads = [threading.Thread(target=register, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        start.wait()
        signal.set("cancelled")
        for thread in threads:
            thread.join()

        assert sorted(seen) == [0, 1, 2, 3]
