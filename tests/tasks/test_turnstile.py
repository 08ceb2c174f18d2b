from __future__ import annotations

import threading
from collections.abc import Callable

from hermes_worker.tasks.fair_semaphore import FairSemaphore


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def wait_for(condition: Callable[[], bool]) -> None:
    while not condition():
        pass


def test_so_many_come_in_at_once_and_no_more() -> None:
    fair_semaphore, inside, most = FairSemaphore(3), [0], [0]
    lock, three_are_in = threading.Lock(), threading.Barrier(3)

    def pass_through() -> None:
        with fair_semaphore:
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            three_are_in.wait(30)
            with lock:
                inside[0] -= 1

    for thread in [in_thread(pass_through) for _ in range(12)]:
        thread.join()
    assert not three_are_in.broken
    assert (inside[0], most[0]) == (0, 3)


def test_those_who_wait_come_in_in_the_order_in_which_they_came() -> None:
    fair_semaphore, order = FairSemaphore(1), []
    threads = []

    def pass_through(number: int) -> None:
        with fair_semaphore:
            order.append(number)

    with fair_semaphore:
        for number in range(8):
            threads.append(in_thread(lambda number=number: pass_through(number)))  # type: ignore[misc]
            wait_for(lambda number=number: len(fair_semaphore._line) == number + 1)  # type: ignore[misc]
    for thread in threads:
        thread.join()
    assert order == list(range(8))


def test_an_error_inside_gives_the_place_back() -> None:
    fair_semaphore = FairSemaphore(1)
    for _ in range(3):
        try:
            with fair_semaphore:
                raise ValueError
        except ValueError:
            pass
    with fair_semaphore:
        pass
