"""The document as one page of HTML: no scripts, no network, all of it in one file."""

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from typing import Any

Node = Mapping[str, Any]
METHODS = ("get", "head", "post", "put", "delete")
DEEP = 6  # levels of a schema that are spelled out
REF = "#/components/schemas/"

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code, pre { font: 13px/1.45 ui-monospace, monospace; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8884; border-radius: 4px; }
details { border-bottom: 1px solid #8884; padding: .3rem 0; }
summary { cursor: pointer; }
table { border-collapse: collapse; width: 100%; }
td, th { text-align: left; vertical-align: top; padding: .2rem .6rem .2rem 0; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 600; }
.about { color: #888; }
h2 { margin-top: 2.5rem; }
nav a { margin-right: 1rem; }
"""
# As a Content-Security-Policy names a style that is written in the page (CSP 3, section 2.3.1).
STYLE_DIGEST = f"sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}"


def page(document: Node) -> bytes:
    """The whole page."""
    info, paths = document["info"], document["paths"]
    tags = list(dict.fromkeys(tag for _, _, one in _operations(paths) for tag in one["tags"]))
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{escape(info['title'])}: APIs</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{_text(info['description'])} The same as <a href='openapi.json'>openapi.json</a>.</p>",
        "<nav>",
        *(f"<a href='#{_anchor(tag)}'>{escape(tag)}</a>" for tag in tags),
        "<a href='#models'>Models</a></nav>",
        *(part for tag in tags for part in _section(tag, paths)),
        "<h2 id='models'>Models</h2>",
        *(part for one in document["components"]["schemas"].items() for part in _model(*one)),
        "</body></html>",
    ]
    return "".join(parts).encode()


def _operations(paths: Node) -> Iterator[tuple[str, str, Node]]:
    for path, item in paths.items():
        for method in METHODS:
            if method in item:
                yield method, path, item[method]


def _section(tag: str, paths: Node) -> Iterator[str]:
    yield f"<h2 id='{_anchor(tag)}'>{escape(tag)}</h2>"
    for method, path, operation in _operations(paths):
        if tag in operation["tags"]:
            yield from _operation(method, path, operation)


def _operation(method: str, path: str, operation: Node) -> Iterator[str]:
    yield f"<details><summary><span class='method'>{method.upper()}</span>"
    yield f"<code>{escape(path)}</code> <span class='about'>{_text(operation['summary'])}</span>"
    yield f"</summary><p>{_text(operation['description'])}</p>"
    if parameters := operation.get("parameters"):
        yield "<h4>Parameters</h4>"
        yield from _table((one["name"], one["schema"], one["in"]) for one in parameters)
    if (body := operation.get("requestBody")) is not None:
        yield "<h4>Body</h4>"
        yield from _page_content(body["content"])
    for status, answer in operation["responses"].items():
        yield f"<h4>{'Error' if status == 'default' else status}</h4>"
        yield from _page_content(answer["content"])
    yield "</details>"


def _page_content(content: Node) -> Iterator[str]:
    for kind, what in content.items():
        yield f"<p><code>{escape(kind)}</code>: {_kind(what['schema'])}</p>"
        for name, example in what.get("examples", {}).items():
            written = json.dumps(example["value"], indent=2, ensure_ascii=False)
            yield f"<p>{escape(name)}</p><pre>{escape(written)}</pre>"


def _model(name: str, schema: Node) -> Iterator[str]:
    yield f"<details id='{escape(name)}'><summary><code>{escape(name)}</code> "
    yield f"<span class='about'>{_text(schema.get('description', ''))}</span></summary>"
    required = schema.get("required", ())
    yield from _table(
        (field, one, "required" if field in required else "")
        for field, one in schema.get("properties", {}).items()
    )
    yield "</details>"


def _table(rows: Iterator[tuple[str, Node, str]]) -> Iterator[str]:
    yield "<table>"
    for name, schema, note in rows:
        about = " ".join(filter(None, (escape(note), _text(schema.get("description", "")))))
        yield f"<tr><td><code>{escape(name)}</code></td><td>{_kind(schema)}</td>"
        yield f"<td>{about}</td></tr>"
    yield "</table>"


def _kind(schema: Node, deep: int = DEEP) -> str:
    """A schema in a few words."""
    if deep == 0:
        return "…"
    if "$ref" in schema:
        name = escape(schema["$ref"].removeprefix(REF))
        return f"<a href='#{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_kind(one, deep - 1) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    kinds = schema.get("type", "anything")
    named = escape(kinds if isinstance(kinds, str) else " or ".join(kinds))
    items = schema.get("items")
    within = f" of {_kind(items, deep - 1)}" if isinstance(items, dict) and items else ""
    return f"{named}{within}{_bounds(schema)}"


def _bounds(schema: Node) -> str:
    names: Sequence[tuple[str, str]] = (
        ("minimum", "from"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to"),
        ("default", "default"),
    )
    facts = [f"{word} {json.dumps(schema[name])}" for name, word in names if name in schema]
    return f" <span class='about'>{escape(', '.join(facts))}</span>" if facts else ""


def _text(text: str) -> str:
    """What stands between backquotes is code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{one}</code>" if k % 2 else one for k, one in enumerate(parts))


def _anchor(tag: str) -> str:
    return "".join(letter for letter in tag.lower() if letter.isalnum())
