"""Which endpoint and which family of models a name belongs to, for rules that depend on it."""

from __future__ import annotations

import re

_KIMI = re.compile(r"(?:kimi|moonshot)[-_]|k[123][.-]|k25|k3$")


def is_host(host: str, *domains: str) -> bool:
    """Whether the bare host name is one of ``domains`` or below one. Look-alikes (``notopenai.com``) are not."""
    host = host.strip().lower().rstrip(".")
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def is_kimi(model: str) -> bool:
    """Whether the name, with or without a ``vendor/`` in front, is of the Kimi family."""
    name = model.strip().lower()
    return "moonshot" in name or _KIMI.match(name.rpartition("/")[2]) is not None
