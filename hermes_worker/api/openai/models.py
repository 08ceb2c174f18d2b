"""The models that clients of OpenAI's API see: the configured one, the alias that stands for it, and agents."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError
from hermes_worker.services.agents import PREFIX, list_agent_names
from hermes_worker.services.submission import DEFAULT_MODEL_ALIAS, InvalidSubmission, resolve_model

router = APIRouter(prefix="/v1/models", tags=["openai"])


class ModelObject(BaseModel):
    """A model as OpenAI lists one."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "hermes"
    permission: list[str] = []
    root: str
    parent: str | None = None


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelObject]


def choose_model(context: ApiContext, asked_for: str | None) -> str | None:
    """Choose the model of a submission by the name that a client sent; ``None`` for the configured one. A name that is
    not offered here is echoed and changes nothing: quick-starts of other vendors name their own models. An agent is
    meant, whether it is there or not."""
    is_agent = asked_for is not None and asked_for.startswith(PREFIX)
    return asked_for if is_agent or asked_for in list_model_names(context) else None


def list_model_names(context: ApiContext) -> list[str]:
    """List the names under which a client may ask for a model."""
    try:
        configured, _ = resolve_model(context.client.settings.model, None)
    except InvalidSubmission:
        return [DEFAULT_MODEL_ALIAS, *list_agent_names()]
    return list(dict.fromkeys((DEFAULT_MODEL_ALIAS, configured, *list_agent_names())))


def _build_object(context: ApiContext, name: str) -> ModelObject:
    names = list_model_names(context)
    root = name if name.startswith(PREFIX) or len(names) == 1 else names[1]
    parent = root if name != root else None
    return ModelObject(id=name, created=context.began_at, root=root, parent=parent)


@router.get("", response_model=ModelList, dependencies=[READS])
async def list_models(context: Context) -> ModelList:
    """The models that a request may name as ``model``. Any other name means the configured one, too."""
    return ModelList(data=[_build_object(context, name) for name in list_model_names(context)])


@router.get("/{model}", response_model=ModelObject, responses=schema.declare_errors(404), dependencies=[READS])
async def get_model(context: Context, model: Annotated[str, Path(max_length=256)]) -> ModelObject:
    """A model, by its name."""
    if model not in list_model_names(context):
        raise ApiError(404, f"The model {model[:80]!r} does not exist.", code="model_not_found", param="model")
    return _build_object(context, model)
