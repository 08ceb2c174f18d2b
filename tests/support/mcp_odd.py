"""An MCP server over standard input and output that misbehaves as its argument says, once a tool is called."""

from __future__ import annotations

import json
import sys
from typing import Any

HOW = sys.argv[1]
SCHEMA = {"type": "object"}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def misbehave(number: int) -> None:
    match HOW:
        case "silence":
            pass
        case "half":
            sys.stdout.write('{"jsonrpc": "2.0", "id":\n')
            sys.stdout.flush()
        case "huge":
            while True:
                sys.stdout.write("x" * 1_000_000)
        case "endless":
            while True:
                say(method="notifications/message", params={"data": "still here"})
        case "end":
            sys.stderr.write("out of ink")
            sys.exit(3)
        case "asks":
            say(id="s1", method="sampling/createMessage", params={})
            answer = json.loads(sys.stdin.readline())
            say(id=number, result={"content": [{"type": "text", "text": json.dumps(answer["error"])}]})
        case "asks and waits":
            say(id="s1", method="roots/list", params={})
        case "answers itself":
            say(id=number, result={"resultType": "input_required", "requestState": "mine"})
        case "others":
            say(id=number + 1, result={"content": []})
            say(id=str(number), result={"content": []})
            print("news of mine")
            say(id=number, result={"content": [{"type": "text", "text": "mine"}]})
        case "error":
            say(id=number, error={"code": -32603, "message": "broken"})


def main() -> None:
    if HOW == "dumb":
        sys.stderr.write("no licence")
        sys.exit(1)
    for line in sys.stdin:
        message = json.loads(line)
        number, method = message.get("id"), message.get("method")
        if method == "initialize":
            say(id=number, result={"protocolVersion": "2025-11-25", "capabilities": {}})
        elif method == "tools/list":
            count = 5_000 if HOW == "many" else 1
            tools = [{"name": f"t{n}", "description": HOW, "inputSchema": SCHEMA} for n in range(count)]
            say(id=number, result={"tools": tools})
        elif method == "tools/call":
            misbehave(number)


if __name__ == "__main__":
    main()
