"""`inbox-outbox web`: the web page, served by uvicorn."""

import socket
from collections.abc import Callable, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Annotated, Any

import typer

from inbox.errors import InvalidOption
from inbox_outbox._connect import Schema, Url, engine_at
from inbox_outbox_base.checks import deciding
from inbox_outbox_base.checks.extras import brought_by

_EVERYTHING = "all"
_LOOPBACK = ("127.0.0.0/8", "::1/128")


def web(
    url: Url,
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
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            help="An address or a network whose header is believed; others are refused.", metavar="ADDRESS"
        ),
    ] = None,
    hostname: Annotated[
        list[str] | None,
        typer.Option(help="A name under which browsers ask for the page, without port.", metavar="NAME"),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="An action that users may take: retry, discard, drop, release, resolve, pause, resume, show "
            "(payloads) or all. By default, they may look.",
            metavar="ACTION",
        ),
    ] = None,
    schema: Schema = None,
) -> None:
    """The web page: what waits, what has stopped and why, and decisions about it.

    It listens on this machine only, and everybody on this machine may open it. On another address it needs a
    proxy that logs users in and names them in a header.
    """
    is_open = not _is_loopback(host)
    if is_open and user_header is None:
        raise InvalidOption(f"--host={host!r}: other machines reach it: add --user-header, --trusted-proxy")
    if is_open and not trusted_proxy:
        raise InvalidOption("--user-header: on an open address anybody can send it; add --trusted-proxy")
    if is_open and not hostname:
        raise InvalidOption("--hostname: expected the name under which browsers ask for the page")
    if trusted_proxy and user_header is None:
        raise InvalidOption("--trusted-proxy: expected with --user-header")
    if user == "":
        raise InvalidOption("--user: expected the name that is stored with decisions")
    named = deciding.operator(user)
    proxies = [_network(each) for each in trusted_proxy or _LOOPBACK]
    with brought_by("web"):
        import uvicorn

        from inbox_outbox.web import ACTIONS, app
    actions = {*ACTIONS} if _EVERYTHING in (allow or ()) else {*(allow or ())}
    if unknown := sorted(actions - {*ACTIONS}):
        raise InvalidOption(f"--allow={unknown[0]!r}: expected {', '.join(ACTIONS)} or {_EVERYTHING}")
    with engine_at(url, schema) as engine, _listening(host, port) as listening:
        page = app(
            engine,
            user=(lambda _: named) if user_header is None else _behind(user_header, proxies),
            allow=lambda _: actions,
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


def _behind(header: str, proxies: Sequence[IPv4Network | IPv6Network]) -> Callable[[Any], str | None]:
    """Users that a proxy names; nobody else may send the header."""

    def user(request: Any) -> str | None:
        try:
            peer = ip_address(request.client.host)
        except ValueError:
            return None
        peer = getattr(peer, "ipv4_mapped", None) or peer
        names = request.headers.getlist(header)  # more than one: a browser's own beside the proxy's
        is_told = len(names) == 1 and any(peer in each for each in proxies)
        return names[0] or None if is_told else None

    return user


def _as_text(_user: str, _of: str, payload: bytes) -> str:
    return payload.decode(errors="backslashreplace")


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise InvalidOption(f"--host={host!r}, --port={port}: {error.strerror or error}") from None
