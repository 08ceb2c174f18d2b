"""Take the text out of a document inside the sandbox: a program of its own, handed to Python as text.

A parser of documents is the likeliest part of all to be broken by what it reads. So it gets the bytes over its standard
input, has no way to answer but that, and may take as much memory and processor time as the order says. Its answer is a
document's text for the worker, and is never trusted.
"""

import io
import json
import os
import resource
import struct
import sys
import zipfile
from collections.abc import Iterator
from typing import Any

_UNPACKED_BYTES_MAX = 256 * 1024 * 1024
_MEMBERS_MAX = 10_000
_RATIO_MAX = 200
"""The largest compression ratio of a member of more than a megabyte: ordinary XML shrinks to a tenth, and long tables
to a fiftieth.
"""
_DECLARATIONS = (b"<!DOCTYPE", b"<!ENTITY")


class _DocumentRefused(Exception):
    """The document is not read; the message says why, as the end of a sentence."""


class _FoundText:
    """Collects the text that is found, up to a limit."""

    def __init__(self, chars_max: int) -> None:
        self._left = chars_max
        self._parts: list[str] = []
        self.is_whole = True

    def add_line(self, text: str) -> bool:
        """Add a line; return whether there is room for more."""
        text = text.replace("\r", " ").replace("\x00", "")
        if len(text) + 1 > self._left:
            self._parts.append(text[: max(0, self._left - 1)])
            self.is_whole, self._left = False, 0
            return False
        self._parts.append(text)
        self._left -= len(text) + 1
        return True

    def __str__(self) -> str:
        return "\n".join(self._parts)


def _read_pdf(data: bytes, text: _FoundText) -> dict[str, Any]:
    import pypdf

    reader = pypdf.PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise _DocumentRefused("is protected by a password")
    pages = len(reader.pages)
    for number, page in enumerate(reader.pages, start=1):
        if not text.add_line(f"--- page {number} of {pages} ---") or not text.add_line(page.extract_text().strip()):
            break
    return {"pages": pages}


def _require_sane_archive(data: bytes) -> None:
    """Check an archive before a parser sees it: raise for one that would unpack to far more than it is."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > _MEMBERS_MAX:
            raise _DocumentRefused(f"has more than {_MEMBERS_MAX} parts")
        if sum(member.file_size for member in members) > _UNPACKED_BYTES_MAX:
            raise _DocumentRefused(f"unpacks to more than {_UNPACKED_BYTES_MAX // 1024**2} MB")
        for member in members:
            if member.flag_bits & 1:
                raise _DocumentRefused("is protected by a password")
            if member.file_size > 1024**2 and member.file_size > _RATIO_MAX * max(1, member.compress_size):
                raise _DocumentRefused("holds a part that unpacks to hundreds of times its size")
            if member.filename.endswith((".xml", ".rels")):
                with archive.open(member) as part:
                    beginning = part.read(65536)
                # A document that declares entities is written to blow up: no office program does.
                if any(word in beginning for word in _DECLARATIONS):
                    raise _DocumentRefused("declares entities of its own")


def _read_rows(table: Any) -> Iterator[str]:
    for row in table.rows:
        yield "\t".join(cell.text.strip().replace("\n", " ") for cell in row.cells)


def _read_docx(data: bytes, text: _FoundText) -> dict[str, Any]:
    import docx
    from docx.table import Table

    document = docx.Document(io.BytesIO(data))
    for block in document.iter_inner_content():
        if isinstance(block, Table):
            lines = list(_read_rows(block))
        else:
            style = (block.style.name or "") if block.style is not None else ""
            level = style.rpartition(" ")[2] if style.startswith("Heading") else ""
            lines = [f"{'#' * int(level)} {block.text}" if level.isdigit() else block.text]
        if not all(text.add_line(line) for line in lines):
            break
    return {}


def _read_xlsx(data: bytes, text: _FoundText) -> dict[str, Any]:
    import openpyxl

    book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
    for sheet in book.worksheets:
        if not text.add_line(f"--- sheet {sheet.title} ---"):
            break
        for row in sheet.iter_rows(values_only=True):
            cells = ["" if cell is None else str(cell).replace("\n", " ") for cell in row]
            while cells and not cells[-1]:
                cells.pop()
            if cells and not text.add_line("\t".join(cells)):
                break
    return {"sheets": len(book.worksheets)}


def _read_pptx(data: bytes, text: _FoundText) -> dict[str, Any]:
    import pptx

    slides = list(pptx.Presentation(io.BytesIO(data)).slides)
    for number, slide in enumerate(slides, start=1):
        lines = [f"--- slide {number} of {len(slides)} ---"]
        for shape in slide.shapes:
            if shape.has_text_frame:
                lines += [paragraph.text for paragraph in shape.text_frame.paragraphs if paragraph.text.strip()]
            if getattr(shape, "has_table", False) and shape.has_table:
                lines += _read_rows(shape.table)
        if slide.has_notes_slide and slide.notes_slide.notes_text_frame is not None:
            lines.append(f"notes: {slide.notes_slide.notes_text_frame.text}")
        if not all(text.add_line(line) for line in lines):
            break
    return {"slides": len(slides)}


_READERS = {"pdf": _read_pdf, "docx": _read_docx, "xlsx": _read_xlsx, "pptx": _read_pptx}


def _read_document(kind: str, data: bytes, chars_max: int) -> dict[str, Any]:
    text = _FoundText(chars_max)
    try:
        if kind != "pdf":
            _require_sane_archive(data)
        facts = _READERS[kind](data, text)
    except _DocumentRefused as error:
        return {"refused": str(error)}
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    except MemoryError:
        return {"refused": "takes more memory than reading a document may"}
    except RecursionError:
        return {"refused": "is nested too deeply"}
    except Exception as error:
        return {"refused": f"cannot be read as {kind}: {type(error).__name__}"}
    return {"text": str(text), "is_whole": text.is_whole, **facts}


def main() -> None:
    """Take the order and the document, and answer."""
    channel = os.fdopen(os.dup(0), "rb", buffering=0)

    def read_message() -> bytes:
        return read_exactly(struct.unpack(">I", read_exactly(4))[0])

    def read_exactly(wanted: int) -> bytes:
        data = bytearray()
        while len(data) < wanted:
            piece = channel.read(min(wanted - len(data), 1 << 20))
            if not piece:
                sys.exit(1)
            data += piece
        return bytes(data)

    order = json.loads(read_message())
    data = read_message()
    for kind, most in ((resource.RLIMIT_AS, order["memory_bytes"]), (resource.RLIMIT_CPU, order["cpu_s"])):
        _, hard = resource.getrlimit(kind)
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (least, hard))
    answer = json.dumps(_read_document(order["kind"], data, order["chars_max"])).encode("utf-8", "replace")
    left = memoryview(struct.pack(">I", len(answer)) + answer)
    while left:
        left = left[os.write(0, left) :]


if __name__ == "__main__":
    main()
