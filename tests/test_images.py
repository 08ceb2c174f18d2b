"""Images are made small, whatever they are; what is no image, or a bomb, is left to others."""

from __future__ import annotations

import base64
import io
import struct
import zlib

import pytest
from PIL import Image

from hermes_worker.agent import images
from hermes_worker.agent.images import find_media_type, shrink_data_url, shrink_image


def written(format_name: str, size: tuple[int, int], mode: str = "RGB", **options: object) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert(mode).save(out, format_name, **options)
    return out.getvalue()


def noise(size: tuple[int, int]) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 200).convert("RGB").save(out, "PNG")
    return out.getvalue()


def read(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize(
    ("format_name", "media_type"),
    [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("GIF", "image/png"), ("WEBP", "image/png")],
)
def test_an_image_of_any_kind_is_scaled_to_its_longest_side(format_name: str, media_type: str) -> None:
    small = shrink_image(written(format_name, (900, 300)), 300)

    assert small is not None
    assert small.media_type == media_type == find_media_type(small.content)
    assert read(small.content).size == (300, 100)


def test_what_is_small_already_keeps_its_bytes() -> None:
    content = written("PNG", (20, 10))
    small = shrink_image(content, 20)
    assert small is not None
    assert small.content is content


def test_what_is_transparent_stays_so() -> None:
    small = shrink_image(written("PNG", (200, 100), "LA"), 50)
    assert small is not None
    assert read(small.content).mode == "RGBA"


def test_an_image_of_too_many_bytes_becomes_a_photo_and_then_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    content = noise((256, 256))
    monkeypatch.setattr(images, "ENCODED_CHARS_MAX", 60_000)
    photo = shrink_image(content, 8_000)
    assert photo is not None
    assert (photo.media_type, read(photo.content).size) == ("image/jpeg", (256, 256))

    monkeypatch.setattr(images, "ENCODED_CHARS_MAX", 8_000)
    smaller = shrink_image(content, 8_000)
    assert smaller is not None
    assert max(read(smaller.content).size) < 256

    monkeypatch.setattr(images, "ENCODED_CHARS_MAX", 10)
    assert shrink_image(content, 8_000) is None


def test_an_image_is_sent_the_same_by_every_worker() -> None:
    url = f"data:image/png;base64,{base64.b64encode(noise((64, 64))).decode()}"
    first = shrink_data_url(url, 32)
    shrink_data_url.cache_clear()
    assert first == shrink_data_url(url, 32) != url


def _png(width: int, height: int, data: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<svg/>",
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"GIF89a",
        b"RIFF\0\0\0\0WEBP",
        _png(300, 300, b"not zlib"),
        _png(300, 300, zlib.compress(b"\0" * 10)),
        _png(9_000, 9_000, zlib.compress(b"")),
        _png(60_000, 60_000, zlib.compress(b"")),
        _png(0, 0, zlib.compress(b"")),
        written("BMP", (300, 300)),
        written("TIFF", (300, 300)),
        written("PNG", (300, 300))[:100],
    ],
)
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_what_is_no_image_or_a_bomb_is_not_made_small(content: bytes) -> None:
    assert shrink_image(content, 100) is None


@pytest.mark.parametrize(
    "url",
    ["https://h.test/a.png", "data:text/plain;base64,AAAA", "data:image/png,AAAA", "data:image/png;base64,A!", "data:"],
)
def test_an_address_that_holds_no_image_is_not_made_small(url: str) -> None:
    assert shrink_data_url(url, 100) is None
