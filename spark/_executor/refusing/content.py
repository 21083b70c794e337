"""A row as JSON, for the table of rejected rows."""

import json

import pyarrow as pa

from inbox_outbox_base.databases import arrow

_LONGEST = 2**20
"""Characters that every server takes in a statement."""


def content(row: pa.Table) -> str:
    """A row as a JSON object. If it is long, its longest values are cut, and become text."""
    texts = {name: _json(row.column(name).combine_chunks()) for name in row.column_names}
    if sum(map(len, texts.values())) > _LONGEST:
        share = _LONGEST // len(texts)
        texts = {name: text if len(text) <= share else _text(text[:share]) for name, text in texts.items()}
    return "{" + ", ".join(f"{_text(name)}: {text}" for name, text in texts.items()) + "}"


def _json(value: pa.Array) -> str:
    try:
        return str(arrow.to_json(value)[0].as_py() or "null")
    except (ValueError, OverflowError):  # a year beyond Python's, or text that is not UTF-8
        return _text(_readable(value))


def _readable(value: pa.Array) -> str:
    """A value that Python cannot hold, as text in Arrow's form; only the type of one that is nested."""
    if pa.types.is_temporal(value.type):
        return str(arrow.readable(value)[0].as_py())
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return bytes(value.cast(pa.large_binary())[0].as_py()).decode(errors="replace")
    return str(value.type)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)
