"""Stand-ins for a chat and a mail server of this machine. Ends when each has taken a message."""

import json
import socketserver
import threading
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, HTTPServer

CHAT_PORT, MAIL_PORT = 8950, 8951


class Chat(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        print(f"--- chat {message['chat']}\n{message['text']}", flush=True)
        taken["chat"].set()

    def log_message(self, *_: object) -> None:
        pass


class Mail(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.say("220 desk")
        while line := self.rfile.readline().decode("latin-1").strip():
            verb = line.split(" ")[0].upper()
            if verb == "DATA":
                self.say("354 go on")
                lines = iter(self.rfile.readline, b".\r\n")
                mail = message_from_bytes(b"".join(line.removeprefix(b".") for line in lines), policy=policy.default)
                self.say("250 taken")
                text = mail.get_body(("plain",)).get_content()
                print(f"--- mail to {mail['To']}: {mail['Subject']}\n{text}", flush=True)
                taken["mail"].set()
            elif verb == "QUIT":
                self.say("221 bye")
                return
            else:
                self.say("250 ok")

    def say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


taken = {"chat": threading.Event(), "mail": threading.Event()}
for server in (
    HTTPServer(("127.0.0.1", CHAT_PORT), Chat),
    socketserver.ThreadingTCPServer(("127.0.0.1", MAIL_PORT), Mail),
):
    threading.Thread(target=server.serve_forever, daemon=True).start()
for each in taken.values():
    each.wait()
