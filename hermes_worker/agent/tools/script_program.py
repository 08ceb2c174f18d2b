"""Run a script of ``execute_code`` inside the sandbox: a program of its own, handed to ``python3`` as text.

It needs nothing but the standard library of any Python 3.8. Its standard input is one end of a socket pair, over which
it gets the script and calls tools; the script itself reads nothing from there. Each message is its length in four bytes
and a JSON document. The other end trusts nothing: this end may only ask for tool calls.
"""

import sys

if sys.path and sys.path[0] == "":
    del sys.path[0]  # a json.py of the workspace is not what is meant here

import json
import linecache
import os
import shlex
import struct
import threading
import time
import traceback
import types

_NAME = "<script>"


class _Channel:
    def __init__(self) -> None:
        self._descriptor = os.dup(0)
        self._lock = threading.Lock()
        self._process = os.getpid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)

    def read(self) -> "dict[str, object]":
        (size,) = struct.unpack(">I", self._read_exactly(4))
        found: dict[str, object] = json.loads(self._read_exactly(size).decode("utf-8"))
        return found

    def _read_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = os.read(self._descriptor, min(size - len(data), 65536))
            if not piece:
                raise RuntimeError("the worker of this script is gone")
            data += piece
        return data

    def call(self, name: str, arguments: "dict[str, object]") -> object:
        if os.getpid() != self._process:
            raise RuntimeError("tools can be called from the script's own process only, not from its children")
        data = json.dumps({"tool": name, "arguments": arguments}).encode("utf-8")
        message = memoryview(struct.pack(">I", len(data)) + data)
        with self._lock:
            while message:
                message = message[os.write(self._descriptor, message) :]
            text = self.read()["result"]
        try:
            return json.loads(str(text))
        except ValueError:
            return text


def _make_tool(channel: _Channel, name: str, parameters: "list[str]") -> types.FunctionType:
    def call_tool(*values: object, **named: object) -> object:
        if len(values) > len(parameters):
            raise TypeError(f"{name}() takes {', '.join(parameters)}")
        arguments = dict(zip(parameters, values))  # noqa: B905  # older Pythons know no strict
        if twice := arguments.keys() & named.keys():
            raise TypeError(f"{name}() got {', '.join(sorted(twice))} twice")
        return channel.call(name, {**arguments, **named})

    call_tool.__name__ = call_tool.__qualname__ = name
    return call_tool  # type: ignore[return-value]


def _retry(call: "types.FunctionType", max_attempts: int = 3, delay: float = 2) -> object:
    """Return what ``call()`` returns, trying again after a wait that doubles."""
    for attempt in range(max_attempts):
        try:
            return call()
        except Exception:
            if attempt + 1 == max_attempts:
                raise
            time.sleep(delay * 2**attempt)
    return None


def main() -> None:
    """Take the order, and run the script as ``__main__``."""
    channel = _Channel()
    order = channel.read()
    tools, source = order["tools"], str(order["code"])
    assert isinstance(tools, dict)
    offered = types.ModuleType("hermes_tools")
    for name, parameters in tools.items():
        setattr(offered, name, _make_tool(channel, name, parameters))
    offered.__dict__.update(
        json_parse=lambda text: json.loads(text, strict=False), shell_quote=shlex.quote, retry=_retry
    )
    sys.modules["hermes_tools"] = offered
    sys.path.insert(0, "")
    linecache.cache[_NAME] = (len(source), None, source.splitlines(True), _NAME)
    script = types.ModuleType("__main__")
    sys.modules["__main__"] = script
    try:
        exec(compile(source, _NAME, "exec"), script.__dict__)  # noqa: S102  # inside the sandbox: it is what it is for
    except SyntaxError as error:
        traceback.print_exception(type(error), error, None)
        sys.exit(1)
    except Exception as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next if error.__traceback__ else None)
        sys.exit(1)


if __name__ == "__main__":
    main()
