"""Images made small enough for a model. The only place where images are decoded.

An image is hostile input: a few kilobytes may unpack to gigabytes. So only four formats are read, the size in the
header is judged before a pixel is unpacked, only the first frame of an animation is, and one image at a time per
process.
"""

from __future__ import annotations

import base64
import binascii
import io
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING

from hermes_worker.core.media_kinds import PICTURES, START_BYTES, guess_type_of_content

if TYPE_CHECKING:
    from PIL.Image import Image

ENCODED_CHARS_MAX = 4 * 1024 * 1024
"""Characters of an image as base64. Anthropic takes 5 MB of it ("Vision", docs.anthropic.com, 2026-03); others take
more.
"""
PIXELS_MAX = 50_000_000
"""Pixels of an image that has to be unpacked whole: 200 MB. JPEG can be unpacked smaller, so it may be larger."""
_JPEG_PIXELS_MAX = 16 * PIXELS_MAX
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_QUALITIES = (85, 70, 50)
_HALVINGS = 5
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallImage:
    """An image as it is sent."""

    media_type: str
    content: bytes = field(repr=False)

    @property
    def data_url(self) -> str:
        return f"data:{self.media_type};base64,{base64.b64encode(self.content).decode()}"


def find_media_type(content: bytes) -> str | None:
    """The media type of an image that models take, by its first bytes; ``None`` for anything else."""
    found = guess_type_of_content(content[:START_BYTES])
    return found if found in PICTURES else None


def count_pixels(content: bytes) -> int | None:
    """How many pixels a picture has, by its header: nothing of it is unpacked. ``None`` for content that is no picture
    that models take, and for a picture that claims more pixels than any may have.
    """
    return _inspect_image(content, lambda image: image.width * image.height)


def is_whole(content: bytes) -> bool:
    """Whether the first frame of a picture can be unpacked to its end. The caller judges its size before."""
    with _one_at_a_time:
        return _inspect_image(content, lambda image: image.load() is not None) is not None


def _inspect_image(content: bytes, look: Callable[[Image], int]) -> int | None:
    from PIL import Image

    if find_media_type(content) is None:
        return None
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            return look(image)
    except _list_pillow_errors():
        return None


def _list_pillow_errors() -> tuple[type[Exception], ...]:
    """The exceptions that Pillow raises for pictures that it cannot read."""
    from PIL import Image, UnidentifiedImageError

    return (
        UnidentifiedImageError,
        Image.DecompressionBombError,
        OSError,
        ValueError,
        SyntaxError,  # a broken chunk of a PNG
        IndexError,
        EOFError,
        struct.error,
        zlib.error,
    )


@lru_cache(maxsize=16)
def shrink_data_url(url: str, side_px_max: int) -> str | None:
    """A ``data:`` URL whose image is within ``side_px_max`` and ``ENCODED_CHARS_MAX``; ``None`` when that cannot be
    made, or ``url`` is no data. An image that is within the limits comes back as it is. The same URL gives the same one
    on every worker."""
    head, comma, encoded = url.partition(",")
    if not comma or not head.startswith("data:image/") or not head.endswith(";base64"):
        return None
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return None
    small = shrink_image(content, side_px_max)
    if small is None:
        return None
    return url if small.content is content else small.data_url


def shrink_image(content: bytes, side_px_max: int) -> SmallImage | None:
    """``content`` within the limits: the very same if it is already. ``None`` when it cannot be made small."""
    from PIL import Image

    media_type = find_media_type(content)
    if media_type is None:
        return None
    with _one_at_a_time:
        try:
            with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                if max(image.size) <= side_px_max and _count_encoded_chars(content) <= ENCODED_CHARS_MAX:
                    return SmallImage(media_type=media_type, content=content)
                return _shrink_image(image, side_px_max)
        except _list_pillow_errors():
            return None


def _shrink_image(image: Image, side_px_max: int) -> SmallImage | None:
    from PIL import Image as images

    is_photo = image.format == "JPEG"
    if image.width * image.height > (_JPEG_PIXELS_MAX if is_photo else PIXELS_MAX):
        return None
    image.draft("RGB", (side_px_max, side_px_max))  # a JPEG is unpacked at a fraction of its size
    if image.width * image.height > PIXELS_MAX:
        return None
    small = image.convert("RGB" if is_photo or not image.has_transparency_data else "RGBA")
    small.thumbnail((side_px_max, side_px_max), images.Resampling.LANCZOS, reducing_gap=2.0)
    for _ in range(_HALVINGS):
        for made in _encode_each_way(small, is_photo=is_photo):
            if _count_encoded_chars(made.content) <= ENCODED_CHARS_MAX:
                return made
        small = small.resize((max(1, small.width // 2), max(1, small.height // 2)), images.Resampling.LANCZOS)
    return None


def _encode_each_way(image: Image, *, is_photo: bool) -> Iterator[SmallImage]:
    """Encode the image in each form that models take, the best first."""
    if not is_photo:
        yield SmallImage(media_type="image/png", content=_encode_image(image, "PNG"))
    plain = _flatten_on_white(image)
    for quality in _QUALITIES:
        yield SmallImage(media_type="image/jpeg", content=_encode_image(plain, "JPEG", quality=quality))


def _flatten_on_white(image: Image) -> Image:
    from PIL import Image as images

    if image.mode != "RGBA":
        return image
    ground = images.new("RGB", image.size, "white")
    ground.paste(image, mask=image.getchannel("A"))
    return ground


def _encode_image(image: Image, format_name: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, format_name, **options)
    return out.getvalue()


def _count_encoded_chars(content: bytes) -> int:
    return (len(content) + 2) // 3 * 4
