"""``image_generate``: pictures from words, and from other pictures."""

from __future__ import annotations

from hermes_worker.addons.images.settings import Pictures
from hermes_worker.addons.images.tool import image_generate
from hermes_worker.extension import Extension
from hermes_worker.setting_groups import settings_of

EXTENSION = Extension(
    name="images",
    version="1",
    summary="Make pictures by a service that speaks OpenAI's Images API",
    tools=(image_generate,),
    settings=settings_of(Pictures),
)
