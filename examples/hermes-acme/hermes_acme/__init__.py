"""Acme's warehouse, models and pagers for Hermes worker. Every process imports this module: keep it light."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Annotated

from hermes_worker.extending import (
    ChatShape,
    Extension,
    Platform,
    Progress,
    ProviderRow,
    Sending,
    SettingDeclaration,
    TextLimit,
    ToolFailed,
    Values,
    tool,
)

__all__ = ["EXTENSION"]

_STOCK = {"bolt": 1200, "nut": 900}


@tool(replay="pure", timeout_s=30, is_untrusted=False)
def stock_level(
    item: Annotated[str, "One item, such as 'bolt'."], progress: Progress, values: Values
) -> dict[str, object]:
    """Look up how many pieces of an item are in Acme's warehouse."""
    progress(f"asking the warehouse about {item}")
    if item not in _STOCK:
        raise ToolFailed(f"Acme has no {item!r}; it has {', '.join(_STOCK)}")
    return {"item": item, "pieces": _STOCK[item], "authorised": bool(values.get("token"))}


EXTENSION = Extension(
    name="acme",
    version="1.0",
    api_version=1,
    summary="Acme's warehouse, models and pagers.",
    tools=(stock_level,),
    providers=(
        ProviderRow(
            name="acme",
            aliases=("acme-models",),
            base_url="https://models.acme.example/v1",
            default_model="acme-large",
            key_variables=("ACME_API_KEY",),
            hosts=("models.acme.example",),
        ),
    ),
    channels=(
        Platform(
            name="pager",
            limit=TextLimit(size_max=500),
            home_variable="PAGER_HOME_CHANNEL",
            shapes=(ChatShape(re.compile(r"(?P<chat>[a-z][a-z0-9-]{0,31})")),),
            sending=Sending(
                send="hermes_acme.pager:send",
                credentials="hermes_acme.pager:Credentials",
                variables=MappingProxyType({"base_url": "PAGER_URL", "token": "PAGER_TOKEN"}),
                secrets=("token",),
                takes_files=False,
                key_kept_s=3600.0,
            ),
        ),
    ),
    settings=(
        SettingDeclaration(
            name="token",
            variable="ACME_WAREHOUSE_TOKEN",
            summary="What the warehouse knows you by.",
            is_required=True,
            is_secret=True,
            roles=("tools",),
        ),
    ),
)
