"""Text from a broker, in a form that every database takes."""


def readable(value: object) -> str:
    """The same text, if it has UTF-8 and no NUL.

    Else each NUL, backslash, and byte that is not UTF-8 becomes an escape (`\\x00`, `\\\\`, `\\xff`), so that
    two binary keys never become one.
    """
    if isinstance(value, bytes | bytearray):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return _escaped(bytes(value).replace(b"\\", b"\\\\").decode(errors="backslashreplace"))
    else:
        text = str(value)
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can have
            text = text.replace("\\", "\\\\").encode(errors="backslashreplace").decode()
            return _escaped(text)
    return _escaped(text.replace("\\", "\\\\")) if "\0" in text else text


def _escaped(text: str) -> str:
    return text.replace("\0", "\\x00")
