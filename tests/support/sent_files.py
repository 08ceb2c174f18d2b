"""Files that people send: bytes of each kind, and a server that has them and tells lies about them."""

from __future__ import annotations

import gzip
import io
import re
import struct
import threading
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from typing import Any

from PIL import Image

from support.fault_server import Received, Reply

Answer = bytes | Callable[[Reply], None]


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 8)) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", size, "red").save(out, kind)
    return out.getvalue()


def huge_picture() -> bytes:
    """A PNG of a few hundred bytes that says it has 200 megapixels."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", 20_000, 10_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(300))) + chunk(b"IEND", b"")


@cache
def zip_bomb(megabytes: int = 64) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../../etc/passwd", bytes(megabytes * 1024**2))
    return out.getvalue()


@cache
def office_bomb(part: str, megabytes: int = 64) -> bytes:
    """A document of an office whose ``part`` is much larger than the file."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(part, bytes(megabytes * 1024**2))
    return out.getvalue()


def plain(content: bytes, *extra: str, length: int | None = None) -> Callable[[Reply], None]:
    """An answer with these bytes, which says that they are ``length`` many."""

    def answer(reply: Reply) -> None:
        said = len(content) if length is None else length
        head = ("HTTP/1.1 200 OK", f"Content-Length: {said}", "Content-Type: image/png", *extra, "Connection: close")
        reply.raw("\r\n".join((*head, "", "")).encode() + content)
        reply.close()

    return answer


def endless(reply: Reply) -> None:
    """1 GB is promised, and bytes come for as long as somebody takes them."""
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    block = bytes(1024**2)
    for _ in range(1024):
        reply.raw(block)


def streamed(size: int, piece: bytes = bytes(65_536)) -> Callable[[Reply], None]:
    """So many bytes, of which the server holds one piece."""

    def answer(reply: Reply) -> None:
        reply.raw(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n".encode())
        for begin in range(0, size, len(piece)):
            reply.raw(piece[: size - begin])
        reply.close()

    return answer


def silent(reply: Reply) -> None:
    """The head comes, and then nothing."""
    reply.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n")
    reply.block()


def compressed(reply: Reply) -> None:
    plain(gzip.compress(bytes(10_000_000)), "Content-Encoding: gzip")(reply)


def redirected(reply: Reply) -> None:
    reply.document(302, b"", "Location: http://169.254.169.254/latest/meta-data/")


class SentFiles:
    """``getFile`` and the download of files, as core.telegram.org/bots/api describes them."""

    def __init__(self) -> None:
        self.contents: dict[str, Answer] = {}
        """By ``file_id``."""
        self.fetched: list[str] = []
        self.failures = 0
        """So many of the next downloads are answered with 502."""
        self._lock = threading.Lock()

    def answer(self, request: Received, reply: Reply) -> bool:
        """Answer what is about files; whether it was."""
        path = request.head.split(" ")[1]
        if re.fullmatch(r"/bot[^/]+/getFile", path):
            self._locate(request.document["file_id"], reply)
            return True
        if found := re.fullmatch(r"/file/bot[^/]+/documents/([^/]+)\.bin", path):
            self._send(found[1], reply)
            return True
        return False

    def _locate(self, name: str, reply: Reply) -> None:
        if name in self.contents:
            reply.document(200, {"ok": True, "result": {"file_id": name, "file_path": f"documents/{name}.bin"}})
        else:
            reply.document(400, {"ok": False, "error_code": 400, "description": "Bad Request: file is too big"})

    def _send(self, name: str, reply: Reply) -> None:
        with self._lock:
            self.fetched.append(name)
            fails = self.failures > 0
            self.failures -= int(fails)
        if fails:
            reply.document(502, {})
            return
        content = self.contents[name]
        (plain(content) if isinstance(content, bytes) else content)(reply)


def photo(name: str, **more: Any) -> dict[str, Any]:
    """Fields of a message with a photo."""
    sizes = [{"file_id": f"{name}-small", "file_size": 10}, {"file_id": name, "file_size": 4_000}]
    return {"photo": sizes, **more}


def document(name: str, called: str | None = "report.pdf", **more: Any) -> dict[str, Any]:
    return {"document": {"file_id": name, "file_name": called, "mime_type": "image/png"}, **more}


def voice(name: str, **more: Any) -> dict[str, Any]:
    return {"voice": {"file_id": name, "duration": 3, "mime_type": "audio/ogg"}, **more}
