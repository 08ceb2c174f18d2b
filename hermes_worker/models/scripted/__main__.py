"""``python -m hermes_worker.models.scripted``: serve the scripted model until SIGTERM or SIGINT.

Prints its base URL on one line once it listens.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hermes_worker.models.scripted.replies import NO_REPLIES, InvalidReplies, load_replies
from hermes_worker.models.scripted.server import Recording, ScriptedOptions, serve_until
from hermes_worker.settings.secret_transfer import begin_program


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hermes_worker.models.scripted", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 picks a free one (default)")
    parser.add_argument("--latency-s", type=float, default=0.0, help="seconds before each reply begins")
    parser.add_argument("--chunks", type=int, default=4, help="events that each text is cut into")
    parser.add_argument("--chunk-gap-s", type=float, default=0.0, help="seconds between two events")
    parser.add_argument("--replies", type=Path, help="file of written scripts or recorded answers")
    parser.add_argument("--record-from", metavar="URL", help="ask this provider, and append its answers to --replies")
    given = parser.parse_args(argv)
    try:
        recording = _build_recording(given.record_from, given.replies)
        replies = load_replies(given.replies) if given.replies is not None and recording is None else NO_REPLIES
    except InvalidReplies as error:
        sys.stderr.write(f"{error}\n")
        return 1
    options = ScriptedOptions(
        latency_s=given.latency_s,
        chunks=given.chunks,
        chunk_gap_s=given.chunk_gap_s,
        replies=replies,
        recording=recording,
    )
    try:
        asyncio.run(_serve_until_signal(given.port, options))
    except OSError as error:
        sys.stderr.write(f"cannot listen on port {given.port}: {error.strerror}\n")
        return 1
    return 0


def _build_recording(upstream: str | None, file: Path | None) -> Recording | None:
    if upstream is None:
        return None
    if file is None:
        raise InvalidReplies("say with --replies which file the answers are recorded in")
    return Recording(upstream=upstream, file=file, say=_report)


async def _serve_until_signal(port: int, options: ScriptedOptions) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await serve_until(stopping, port=port, options=options, announce=_announce)


def _report(said: str) -> None:
    sys.stderr.write(f"{said}\n")
    sys.stderr.flush()


def _announce(base_url: str) -> None:
    sys.stdout.write(f"{base_url}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    begin_program()
    sys.exit(main())
