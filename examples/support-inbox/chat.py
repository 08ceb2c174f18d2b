"""A chat on this machine: send a message of Ada's, print what the agent says, and answer its question."""

import hashlib
import hmac
import json
import os
import queue
import re
import sys
import threading
import time
import urllib.request
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

API = "http://127.0.0.1:8642"
heard: queue.Queue[str] = queue.Queue()


class Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        heard.put(message.get("text", ""))

    def log_message(self, *_: object) -> None:
        pass


def send(text: str) -> None:
    """Send a message of Ada's, signed as docs/gateway.md says."""
    body = json.dumps({"id": uuid.uuid4().hex, "sender": "ada", "text": text}).encode()
    now = str(int(time.time()))
    signature = hmac.new(os.environ["CHAT_WEBHOOK_SECRET"].encode(), f"{now}.".encode() + body, hashlib.sha256)
    headers = {"X-Webhook-Timestamp": now, "X-Webhook-Signature-V2": signature.hexdigest()}
    headers["Content-Type"] = "application/json"
    urllib.request.urlopen(urllib.request.Request(f"{API}/inbound/chat_webhook", body, headers)).close()
    print(f"ada: {text}", flush=True)


threading.Thread(target=HTTPServer(("127.0.0.1", 8952), Answers).serve_forever, daemon=True).start()
send(sys.argv[1])
while True:
    said = heard.get()
    print(f"agent: {said}", flush=True)
    if (code := re.search(r"/approve (\w+)", said)) is not None:
        is_allowed = "--allow" in sys.argv or input("Allow it? [y/n] ").startswith("y")
        send(f"/{'approve' if is_allowed else 'deny'} {code[1]}")
    elif not said.startswith("This was"):  # which says that the answer was taken
        break
