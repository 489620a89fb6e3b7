"""Serve the lesson to this machine alone, to whoever has the token.

marimo's own server answers any Host, and a page of any origin that reaches it could press its
buttons; here that would run code. So every request must name this machine, come from this page or
from none, and carry the token that the printed address has.
"""

import os
import secrets
import socket
import sys
import threading
import traceback
import webbrowser
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import marimo
import uvicorn

from scaledot.files import Refusal
from scaledot.lesson import numbers
from scaledot.lesson.texts import say

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

HERE = Path(__file__).parent
POLICY = "; ".join(
    (
        "default-src 'self'",
        # marimo's page starts from an inline script, and its plug-ins compile code
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' 'wasm-unsafe-eval' blob:",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self' data:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    b"content-security-policy": POLICY.encode(),
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
}
POLICY_VIOLATION = 1008
"""The code with which a web socket is closed (RFC 6455, section 7.4.1)."""


def serve(lesson: Path, state: Path, *, language: str, port: int, browser: bool) -> None:
    """Serve a lesson until Ctrl-C; the address is printed, and opened if wanted."""
    listening = _listen(port)
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    head = (HERE / "head.html").read_text(encoding="utf-8")
    lost = " / ".join(say("page.lost", x) for x in ("tr", "en"))
    pages = (
        marimo.create_asgi_app(
            quiet=True, token=token, skew_protection=True, html_head=head.replace("{lost}", lost)
        )
        .with_app(path="/", root=str(HERE / "app.py"))
        .build()
    )
    meta = {"lesson": str(lesson), "state": str(state), "language": language}
    config = uvicorn.Config(
        guard(pages, port, meta), log_level="warning", timeout_graceful_shutdown=1
    )
    address = f"http://127.0.0.1:{port}/?access_token={token}&lang={language}"
    sys.stdout.write(f"{address}\n")
    sys.stdout.flush()
    # The training takes seconds; it should be there before somebody turns to its page.
    threading.Thread(target=numbers.training, daemon=True).start()
    if browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    status = 0
    try:
        uvicorn.Server(config).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    except BaseException:
        traceback.print_exc()
        status = 1
    os._exit(status)  # threads of open pages would hold the process until a second Ctrl-C


def _listen(port: int) -> socket.socket:
    """Return a socket that listens on this machine alone; requests wait until they are served."""
    listening = socket.socket()
    if os.name == "posix":  # on Windows it would let a second server take the same port
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        raise Refusal(f"cannot serve on --port {port}: {error.strerror}; name another") from error
    listening.listen(128)
    return listening


def guard(app: App, port: int, meta: MutableMapping[str, str]) -> App:
    """Return an app that refuses what does not name this machine, or comes from another page."""
    hosts = {f"127.0.0.1:{port}".encode(), f"localhost:{port}".encode()}
    origins = {b"http://" + host for host in hosts}

    async def guarded(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await app(scope, receive, send)
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        if headers.get(b"host") not in hosts or (origin is not None and origin not in origins):
            return await _refuse(scope, send)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, x) for name, x in message.get("headers", ())
                        if not name.lower().startswith(b"access-control-")]  # fmt: skip
                message = {**message, "headers": [*kept, *HEADERS.items()]}
            await send(message)

        scope["meta"] = meta
        return await app(scope, receive, answer)

    return guarded


async def _refuse(scope: Message, send: Send) -> None:
    """Refuse a request, and say no more than that."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return
    headers = [(b"content-type", b"text/plain"), *HEADERS.items()]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": b"Forbidden"})
