"""Documents for ``read_file``: good ones of each kind, and ones that are written to break whoever reads them."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator

KINDS = ("docx", "xlsx", "pptx")
_MAIN = {"docx": "word/document.xml", "xlsx": "xl/workbook.xml", "pptx": "ppt/presentation.xml"}


def pdf(*pages: str, more: bytes = b"") -> bytes:
    """A PDF with a text on each page."""
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET".encode()
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>".encode()
        )
        objects.append(b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content))
    return _written(objects, more)


def _written(objects: list[bytes], more: bytes = b"") -> bytes:
    out, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    out += more
    start = len(out)
    out += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    out += b"".join(b"%010d 00000 n \n" % place for place in places)
    out += b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(out)


def docx() -> bytes:
    import docx as library

    document = library.Document()
    document.add_heading("Plan", level=2)
    document.add_paragraph("First we measure.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "left", "right"
    return _saved(document)


def xlsx() -> bytes:
    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Costs"
    book.active.append(["item", "eur"])
    book.active.append(["tea", 4.5])
    book.create_sheet("Empty")
    return _saved(book)


def pptx() -> bytes:
    import pptx as library

    show = library.Presentation()
    slide = show.slides.add_slide(show.slide_layouts[1])
    slide.shapes.title.text = "Results"
    slide.placeholders[1].text = "It works."
    slide.notes_slide.notes_text_frame.text = "Speak slowly."
    return _saved(show)


GOOD = {"docx": docx, "xlsx": xlsx, "pptx": pptx}


def _saved(document: object) -> bytes:
    out = io.BytesIO()
    document.save(out)  # type: ignore[attr-defined]
    return out.getvalue()


def archive(*members: tuple[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members:
            file.writestr(name, data)
    return out.getvalue()


def with_member(data: bytes, name: str, content: bytes) -> bytes:
    """An archive with another content of one member."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as new:
        for member in old.infolist():
            if member.filename != name:
                new.writestr(member.filename, old.read(member))
        new.writestr(name, content)
    return out.getvalue()


def _lying(size: int) -> bytes:
    """An archive whose directory says that a member has ``size`` bytes."""
    data = bytearray(archive(("word/document.xml", b"x" * 10_000)))
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", size)
    return bytes(data)


_LAUGHS = (
    b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a "ha">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 10) for n in range(9))
    + b"]><l>&j;</l>"
)
_OUTSIDE = b'<?xml version="1.0"?><!DOCTYPE l [<!ENTITY x SYSTEM "file:///etc/passwd">]><l>&x;</l>'
_DEEP = b"<a>" * 200_000 + b"</a>" * 200_000


Document = tuple[str, str, Callable[[], bytes]]
"""A name, the file's name, and what makes its content: some are large, and few tests need them all."""


def hostile_documents() -> Iterator[Document]:
    """None of them may be shown as text, or bring anything down."""
    for kind in KINDS:
        yield from _of_office(kind)
    yield from _others()


_CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"


def _of_office(kind: str) -> Iterator[Document]:
    good = GOOD[kind]
    yield f"{kind}-cut-in-half", f"a.{kind}", lambda: good()[: len(good()) // 2]
    yield f"{kind}-header-only", f"a.{kind}", lambda: b"PK\x03\x04" + bytes(64)
    yield f"{kind}-empty-archive", f"a.{kind}", lambda: b"PK\x03\x04" + archive()
    yield f"{kind}-another-archive", f"a.{kind}", lambda: archive(("a.txt", b"hello"))
    yield f"{kind}-entities", f"a.{kind}", lambda: with_member(good(), _MAIN[kind], _LAUGHS)
    yield f"{kind}-entity-of-a-file", f"a.{kind}", lambda: with_member(good(), _MAIN[kind], _OUTSIDE)
    yield f"{kind}-entities-in-types", f"a.{kind}", lambda: with_member(good(), "[Content_Types].xml", _LAUGHS)
    yield f"{kind}-deep", f"a.{kind}", lambda: with_member(good(), _MAIN[kind], _DEEP)
    yield f"{kind}-not-xml", f"a.{kind}", lambda: with_member(good(), _MAIN[kind], b"\xff\xfe\x00 not xml")
    yield f"{kind}-bomb", f"a.{kind}", lambda: with_member(good(), "media/bomb.bin", bytes(40_000_000))
    yield f"{kind}-many-parts", f"a.{kind}", lambda: archive(*((f"p{n}", b"") for n in range(10_001)))
    yield f"{kind}-names-outside", f"a.{kind}", lambda: archive(("../../outside", b"x"), ("/etc/passwd", b"x"))
    yield (
        f"{kind}-no-main-part",
        f"a.{kind}",
        lambda: archive(("[Content_Types].xml", b"<Types/>"), ("_rels/.rels", b"<a/>")),
    )


def _bomb() -> bytes:
    packed = zlib.compress(bytes(300_000_000), 9)
    bomb = b"<< /Length %d /Filter /FlateDecode >>\nstream\n%s\nendstream" % (len(packed), packed)
    page = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"
    return _written([_CATALOG, b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", page, bomb])


def _others() -> Iterator[Document]:
    yield "docx-lies-small", "a.docx", lambda: _lying(1)
    yield "docx-lies-huge", "a.docx", lambda: _lying(0xFFFFFFF0)
    yield "xlsx-called-docx", "a.docx", lambda: xlsx()
    yield "pptx-called-xlsx", "a.xlsx", lambda: pptx()
    yield "pdf-header-only", "a.pdf", lambda: b"%PDF-1.7\n\x00\x01"
    yield "pdf-cut", "a.pdf", lambda: pdf("one", "two")[:150]
    yield "pdf-of-zeros", "a.pdf", lambda: b"%PDF-1.7\n" + bytes(100_000)
    yield "pdf-no-root", "a.pdf", lambda: _written([b"<< /Type /Nothing >>"])
    loop = [_CATALOG, b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 2 >>"]
    yield "pdf-pages-in-a-circle", "a.pdf", lambda: _written(loop)
    yield "pdf-a-billion-pages", "a.pdf", lambda: _written([loop[0], b"<< /Type /Pages /Kids [] /Count 1000000000 >>"])
    yield "pdf-nested-arrays", "a.pdf", lambda: _written([loop[0], b"[" * 100_000 + b"]" * 100_000])
    yield (
        "pdf-trailer-in-a-circle",
        "a.pdf",
        lambda: b"%PDF-1.4\nxref\n0 0\ntrailer << /Prev 9 /Size 1 >>\nstartxref\n9\n%%EOF",
    )
    yield "pdf-negative-offset", "a.pdf", lambda: b"%PDF-1.4\nstartxref\n-99999999999999\n%%EOF"
    yield "pdf-bomb", "a.pdf", _bomb
    encrypted = b"<< /Filter /Standard /V 4 /R 4 /O (x) /U (x) /P -4 >>"
    locked = _written([loop[0], loop[1], encrypted]).replace(b"/Root 1 0 R", b"/Root 1 0 R /Encrypt 3 0 R")
    yield "pdf-locked", "a.pdf", lambda: locked
