"""`inbox-outbox web`: the web page, served by uvicorn."""

import asyncio
import base64
import logging
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Annotated, Any

import typer

from inbox.errors import InvalidOption
from inbox_outbox._connect import Schema
from inbox_outbox._operating.each_database import Urls, engines_at
from inbox_outbox_base.checks import deciding
from inbox_outbox_base.checks.extras import brought_by

from .passwords import Passwords, StoredPassword

_EVERYTHING = "all"
_LOOPBACK = ("127.0.0.0/8", "::1/128")
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="inbox-outbox", charset="UTF-8"'}
_log = logging.getLogger("inbox.web")


def web(
    url: Urls,
    host: Annotated[str, typer.Option(help="The address to listen on.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port; 0 is any.", metavar="NUMBER", min=0, max=65_535)
    ] = 8_000,
    user: Annotated[
        str | None,
        typer.Option(
            envvar="USER", show_envvar=False, help="Who uses the page on this machine.", metavar="NAME"
        ),
    ] = None,
    user_header: Annotated[
        str | None, typer.Option(help="The header in which a proxy names its user.", metavar="HEADER")
    ] = None,
    password_file: Annotated[
        Path | None,
        typer.Option(
            help="Who may log in: a file with a line of `inbox-outbox password` for each user.",
            metavar="FILE",
        ),
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="An address or a network of the proxy: requests from elsewhere have no user.",
            metavar="ADDRESS",
        ),
    ] = None,
    hostname: Annotated[
        list[str] | None,
        typer.Option(help="A name under which browsers ask for the page, without port.", metavar="NAME"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="An action that users may take: retry, discard, drop, release, resolve, dismiss, pause, "
            "resume, show (payloads) or all. By default, they may look.",
            metavar="ACTION",
        ),
    ] = None,
    schema: Schema = None,
) -> None:
    """The web page: what waits, what has stopped and why, and decisions about it.

    It listens on this machine only, and everybody on this machine may open it, unless there is a
    --password-file. On another address it needs a proxy that speaks TLS, and either logs users in and names
    them in a header, or passes on what they type for the --password-file.
    """
    _check_place(host, user_header, password_file, trusted_proxy, hostname)
    if user == "":
        raise InvalidOption("--user: expected the name that is stored with decisions")
    named = deciding.operator(user)
    proxies = [_network(each) for each in trusted_proxy or _LOOPBACK]
    actions = _actions(allow)
    passwords = Passwords({}) if password_file is None else Passwords.read(password_file)
    own = {name: _actions(each.actions) for name, each in passwords.users.items()}
    who: Callable[[Any], Any]
    if user_header is not None:
        who = _behind(user_header, proxies)
    elif password_file is not None:
        who = _logged_in(passwords, proxies)
    else:
        who = _always(named)
    with brought_by("web"):
        import uvicorn

        from inbox_outbox.web import app
    with engines_at(url, schema) as engines, _listening(host, port) as listening:
        page = app(
            engines.get("", engines),
            user=who,
            allow=lambda name: actions | own.get(name, frozenset()),
            show=_as_text,
            hosts=hostname,
            schema=schema,
        )
        where = f"[{host}]" if ":" in host else host
        typer.echo(f"http://{where}:{listening.getsockname()[1]}/ until Ctrl-C", err=True)
        config = uvicorn.Config(
            page,
            log_level="warning",
            lifespan="off",
            ws="none",
            proxy_headers=False,  # else the peer's address, which is checked, could be a header's
            server_header=False,
            timeout_graceful_shutdown=1,  # pages keep a connection open
        )
        uvicorn.Server(config).run([listening])


def password(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The user's name, as it is stored with decisions.")
    ],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="An action that this user may take, or all, beside those of `inbox-outbox web --allow`.",
            metavar="ACTION",
        ),
    ] = None,
) -> None:
    """Ask for a password, and print the user's line for the file of `inbox-outbox web --password-file`.

    The line holds a digest of the password (scrypt). Without a terminal, the password is the first line of
    the standard input.
    """
    if ":" in deciding.operator(name) or name.startswith("#") or name != name.strip():
        raise InvalidOption(f"name={name!r}: expected no colon, no # at the begin, and no blanks around it")
    actions = _actions(allow)
    if sys.stdin.isatty():
        given = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        given = sys.stdin.readline().rstrip("\n")
    typer.echo(f"{name}:{StoredPassword.of(given, actions)}")


def _check_place(
    host: str,
    user_header: str | None,
    password_file: Path | None,
    trusted_proxy: Sequence[str] | None,
    hostname: Sequence[str] | None,
) -> None:
    """Only users whose name is known reach a page, and no password is readable on its way."""
    if user_header is not None and password_file is not None:
        raise InvalidOption("--user-header, --password-file: expected one of the two")
    if trusted_proxy and user_header is None and password_file is None:
        raise InvalidOption("--trusted-proxy: expected with --user-header or --password-file")
    if _is_loopback(host):
        return
    if user_header is None and password_file is None:
        needed = "add --trusted-proxy, and --user-header or --password-file"
        raise InvalidOption(f"--host={host!r}: other machines reach it: {needed}")
    if not trusted_proxy and password_file is not None:
        why = "on an open address passwords could be read on their way"
        raise InvalidOption(f"--password-file: {why}; add --trusted-proxy, of a proxy that speaks TLS")
    if not trusted_proxy:
        raise InvalidOption("--user-header: on an open address anybody can send it; add --trusted-proxy")
    if not hostname:
        raise InvalidOption("--hostname: expected the name under which browsers ask for the page")


def _actions(given: Iterable[str] | None) -> frozenset[str]:
    """Actions that may be allowed, or all of them."""
    with brought_by("web"):
        from inbox_outbox.web import ACTIONS
    wanted = {*(given or ())}
    if unknown := sorted(wanted - {*ACTIONS, _EVERYTHING}):
        raise InvalidOption(f"--allow={unknown[0]!r}: expected {', '.join(ACTIONS)} or {_EVERYTHING}")
    return frozenset(ACTIONS if _EVERYTHING in wanted else wanted)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise InvalidOption(f"--trusted-proxy={text!r}: expected an address or a network") from None


def _always(name: str) -> Callable[[Any], str]:
    """Everybody on this machine is this user."""
    return lambda _: name


def _behind(header: str, proxies: Sequence[IPv4Network | IPv6Network]) -> Callable[[Any], str | None]:
    """Users that a proxy names; nobody else may send the header."""

    def user(request: Any) -> str | None:
        names = request.headers.getlist(header)  # more than one: a browser's own beside the proxy's
        return names[0] or None if len(names) == 1 and _is_from(request, proxies) else None

    return user


def _logged_in(
    passwords: Passwords, proxies: Sequence[IPv4Network | IPv6Network]
) -> Callable[[Any], Awaitable[str | None]]:
    """Users who have typed their password in the browser's own window (HTTP Basic)."""
    from starlette.concurrency import run_in_threadpool
    from starlette.exceptions import HTTPException

    one_at_a_time = asyncio.Lock()  # whoever guesses takes one thread

    async def user(request: Any) -> str | None:
        if not _is_from(request, proxies):
            return None
        name, password = _typed(request.headers.get("authorization", ""))
        if name:
            if passwords.remembers(name, password):
                return name
            async with one_at_a_time:
                if await run_in_threadpool(passwords.are_right, name, password):
                    return name
            _log.warning(
                "%s: a user was refused, because the name or the password is wrong", request.client.host
            )
        raise HTTPException(401, "log in with a name and a password", _CHALLENGE)

    return user


def _typed(header: str) -> tuple[str, str]:
    """The name and the password in an `Authorization` header; two empty texts if there are none."""
    kind, _, encoded = header.partition(" ")
    try:
        found = base64.b64decode(encoded, validate=True).decode() if kind.lower() == "basic" else ""
    except ValueError:
        found = ""
    name, _, password = found.partition(":")
    return name, password


def _is_from(request: Any, proxies: Sequence[IPv4Network | IPv6Network]) -> bool:
    """Whether a request comes from one of these addresses."""
    try:
        peer = ip_address(request.client.host)
    except ValueError:
        return False
    peer = getattr(peer, "ipv4_mapped", None) or peer
    return any(peer in each for each in proxies)


def _as_text(_user: str, _of: str, payload: bytes) -> str:
    return payload.decode(errors="backslashreplace")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidOption(f"--host={host!r}, --port={port}: {error.strerror or error}") from None
