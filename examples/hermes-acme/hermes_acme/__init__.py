"""Acme's warehouse, models and pagers for Hermes worker. Every process imports this module: keep it light."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from hermes_worker.extending import (
    ChatShape,
    Extension,
    Platform,
    Progress,
    ProviderRow,
    Sending,
    TextLimit,
    ToolFailed,
    ToolSourceDeclaration,
    setting,
    settings_of,
    tool,
)

__all__ = ["EXTENSION"]

_STOCK = {"bolt": 1200, "nut": 900}


@dataclass(frozen=True, slots=True, kw_only=True)
class Warehouse:
    """What the operator sets."""

    token: str = setting("ACME_WAREHOUSE_TOKEN", "What the warehouse knows you by.", is_secret=True)
    pieces_max: int = setting("ACME_PIECES_MAX", "The largest number that is told.", default=10_000, minimum=1)
    workshop_url: str | None = setting("ACME_WORKSHOP_URL", "Address of the workshop's server.")
    site: Literal["north", "south"] = setting("ACME_SITE", "Which warehouse is asked.", default="north")


@tool(replay="pure", timeout_s=30, is_untrusted=False)
def stock_level(
    item: Annotated[str, "One item, such as 'bolt'."], progress: Progress, warehouse: Warehouse
) -> dict[str, object]:
    """Look up how many pieces of an item are in Acme's warehouse."""
    progress(f"asking the warehouse about {item}")
    if item not in _STOCK:
        raise ToolFailed(f"Acme has no {item!r}; it has {', '.join(_STOCK)}")
    pieces = min(_STOCK[item], warehouse.pieces_max)
    return {"item": item, "pieces": pieces, "site": warehouse.site, "authorised": bool(warehouse.token)}


EXTENSION = Extension(
    name="acme",
    version="1.0",
    api_version=1,
    summary="Acme's warehouse, models and pagers.",
    tools=(stock_level,),
    tool_sources=(ToolSourceDeclaration(name="workshop", implementation="hermes_acme.machines:Workshop", refresh_s=1),),
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
    settings=settings_of(Warehouse),
)
