"""An agent that stores nothing and begins anew: what the suite must see as broken. Standard library only."""

from __future__ import annotations

import sys
from typing import Any

from agent import FIRST, ask_model, pay

if sys.argv[1] != "allow":
    messages: list[Any] = [FIRST]
    while (reply := ask_model(messages)).get("tool_calls"):
        if sys.argv[1] == "ask":
            sys.exit(0)
        messages += [reply, pay(reply["tool_calls"][0])]
    print(reply["content"])
else:
    pay({"id": "call_0", "function": {"arguments": '{"mark": "m0"}'}})
