from __future__ import annotations

from fastapi import APIRouter

from support.greetings.rules import render_greeting
from support.greetings.schema import GreetingObject

router = APIRouter(prefix="/v1/greetings")


@router.get("/{name}")
def show_greeting(name: str) -> GreetingObject:
    return GreetingObject(text=render_greeting(name))
