"""Text from a broker, in a form that every database takes."""

import re

_LIKE_ESCAPED = re.compile(
    r"(?:\\=)*(?=.*\\[xu])(?:[^\\]|\\\\|\\x(?:00|[89a-f][0-9a-f])|\\ud[89a-f][0-9a-f]{2})*", re.DOTALL
)
"""What `readable` makes of binary values, and what `readable_key` makes of text that looks like it."""


def readable(value: object) -> str:
    """The same text, if it has UTF-8 and no NUL.

    Else each NUL, backslash, and byte that is not UTF-8 becomes an escape (`\\x00`, `\\\\`, `\\xff`), so that
    two binary values never become one.
    """
    return _read(value)[0]


def readable_key(value: object, *, is_of_outbox: bool) -> str:
    """The same for a key. Text that looks like a binary key begins with `\\=`, so that they never become
    one; but an outbox's key is the text that was published, whatever it looks like."""
    if is_of_outbox:
        return readable(value)
    text, is_escaped = _read(value)
    return text if is_escaped or not _LIKE_ESCAPED.fullmatch(text) else "\\=" + text


def _read(value: object) -> tuple[str, bool]:
    """The text, and whether it has escapes."""
    if isinstance(value, bytes | bytearray):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return _escaped(bytes(value).replace(b"\\", b"\\\\").decode(errors="backslashreplace")), True
    else:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can have
            text = text.replace("\\", "\\\\").encode(errors="backslashreplace").decode()
            return _escaped(text), True
    return (_escaped(text.replace("\\", "\\\\")), True) if "\0" in text else (text, False)


def _escaped(text: str) -> str:
    return text.replace("\0", "\\x00")
