from __future__ import annotations

from fastapi import APIRouter

from support.greetings.rules import render_greeting

router = APIRouter(prefix="/v1/greetings")


@router.get("/{name}")
def show_greeting(name: str) -> dict[str, str]:
    return {"text": render_greeting(name)}
