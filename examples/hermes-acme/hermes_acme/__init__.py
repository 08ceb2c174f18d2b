"""Acme's warehouse, models and pagers for Hermes worker: a module for each thing, and a line for each here.

Every process imports this module: what is heavy, or runs in one role only, is named by a reference.
"""

from __future__ import annotations

from hermes_acme.board import board
from hermes_acme.models import ACME
from hermes_acme.pager import PAGER
from hermes_acme.stock import Warehouse, stock_level
from hermes_worker.extending import (
    CompactorDeclaration,
    ContextSourceDeclaration,
    Extension,
    HookDeclaration,
    RouterDeclaration,
    ToolSourceDeclaration,
    WorkspaceDeclaration,
    settings_of,
)

__all__ = ["EXTENSION"]

EXTENSION = Extension(
    name="acme",
    version="1.0",
    api_version=1,
    summary="Acme's warehouse, models and pagers.",
    tools=(stock_level,),
    tool_sources=(ToolSourceDeclaration(name="workshop", implementation="hermes_acme.machines:Workshop", refresh_s=1),),
    providers=(ACME,),
    channels=(PAGER,),
    workspaces=(WorkspaceDeclaration(name="crate", implementation="hermes_acme.crates:open_crate"),),
    routers=(RouterDeclaration(name="acme", implementation="hermes_acme.dialect:router"),),
    context_sources=(ContextSourceDeclaration(name="acme", implementation=board),),
    hooks=(HookDeclaration(name="sign", events=("transform_llm_output",), implementation="hermes_acme.signing:sign"),),
    compactors=(CompactorDeclaration(name="short", implementation="hermes_acme.short:Short"),),
    settings=settings_of(Warehouse),
)
