"""A small SMTP server on loopback that keeps what it is sent and can be told to misbehave."""

from __future__ import annotations

import socketserver
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass(slots=True)
class SmtpServer:
    """``mails`` is what was taken. ``next_replies`` holds one instruction per mail to come: a reply to RCPT such as
    ``550 no such user``, or ``drop`` to take the content and hang up."""

    port: int = 0
    mails: list[bytes] = field(default_factory=list)
    next_replies: deque[str] = field(default_factory=deque)

    def text(self, index: int = 0) -> str:
        """The plain text of a mail."""
        message = message_from_bytes(self.mails[index], policy=policy.default)
        assert isinstance(message, EmailMessage)
        body = message.get_body(("plain",))
        assert body is not None
        return str(body.get_content())


@contextmanager
def smtp_server() -> Iterator[SmtpServer]:
    state = SmtpServer()

    class Handler(socketserver.StreamRequestHandler):
        def say(self, line: str) -> None:
            self.wfile.write(f"{line}\r\n".encode())

        def handle(self) -> None:
            self.say("220 test")
            instruction = state.next_replies.popleft() if state.next_replies else ""
            while line := self.rfile.readline().decode("latin-1").strip():
                verb = line.split(" ")[0].upper()
                if verb == "DATA":
                    self.say("354 go on")
                    content = self._content()
                    if content is None:
                        return
                    state.mails.append(content)
                    if instruction == "drop":
                        return
                    self.say("250 2.0.0 taken as 1234")
                elif verb == "RCPT" and instruction and instruction != "drop":
                    self.say(instruction)
                elif verb == "QUIT":
                    self.say("221 bye")
                    return
                else:
                    self.say("250 ok")

        def _content(self) -> bytes | None:
            """The mail; ``None`` when the client went away before its end, and then no server takes it."""
            lines = []
            while line := self.rfile.readline():
                if line == b".\r\n":
                    return b"".join(lines)
                lines.append(line[1:] if line.startswith(b".") else line)
            return None

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients are killed in the middle of a mail by some tests."""

    with Server(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield state
        server.shutdown()
