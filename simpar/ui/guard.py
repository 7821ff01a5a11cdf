"""Access control: only pages of this server on this machine may send requests.

A request whose Host is not this machine is refused, because a foreign name that resolves to 127.0.0.1 would let any
site read answers; so is a request from another site (Origin, Sec-Fetch-Site).
"""

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from simpar.dataclass import dataclass
from simpar.units import MIB

NAMES = ("127.0.0.1", "localhost", "[::1]")
"""Names of the server for a browser on this machine or behind a tunnel; a tunnel may change the port."""
MAX_BODY_BYTES = 8 * MIB
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


@dataclass(frozen=True)
class Guard:
    """Refuses requests that do not come from a page of this server, and bodies larger than its pages send.

    ``public`` is the host under which a proxy on this machine serves the pages to others; "" without one.
    """

    app: App
    public: str = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it with one line."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        status, words = refusal(scope["method"], headers, self.public)
        if status:
            await _refuse(send, status, words)
            return
        await self.app(scope, _limited(receive), _with_headers(send))


def refusal(method: str, headers: Mapping[str, str], public: str = "") -> tuple[int, str]:
    """Status and reason if a request is refused; 0 if it is not. Names of ``headers`` are in lower case."""
    host = headers.get("host", "")
    names = (*NAMES, *([public] if public else []))
    if _name(host) not in NAMES and (not public or host != public):
        return 403, f"Host {host[:80]!r} is refused; allowed: {', '.join(names)}"
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        return 403, f"Origin {origin[:80]!r} is refused; allowed: the page itself"
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and (
        method != "GET" or headers.get("sec-fetch-mode") != "navigate"
    ):
        return 403, "requests of other sites are refused; allowed: the page itself"
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
        return 413, describe_body_limit()
    if method == "POST" and headers.get("content-type", "").split(";")[0] != "application/json":
        return 415, "content-type is refused; allowed: application/json"
    return 0, ""


def _name(host: str) -> str:
    """The host of ``host:port``."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


def describe_body_limit() -> str:
    """The message for a body that no page sends."""
    return f"what is sent is larger than {MAX_BODY_BYTES // MIB} MiB; allowed: scenarios, plans and results below that"


class TooLarge(Exception):
    """A body is larger than what pages of this server send."""


def _limited(receive: Receive) -> Receive:
    """The same ``receive`` with a byte count: a body of unknown length is refused as soon as it is too long."""
    seen = 0

    async def counted() -> MutableMapping[str, Any]:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > MAX_BODY_BYTES:
            raise TooLarge
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
        await send(message)

    return sent


async def _refuse(send: Send, status: int, words: str) -> None:
    body = json.dumps({"error": words}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send(
        {"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close"), *HEADERS]}
    )
    await send({"type": "http.response.body", "body": body})
