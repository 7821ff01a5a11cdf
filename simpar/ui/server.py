"""The addresses of the page: files of ``static/``, and answers to states as lines of JSON.

An answer comes in parts, one per line: ``numbers`` or ``error``, ``choices``, then slower parts. A page with a new
question drops the connection of the previous one, which ends the work for it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

import simpar
from simpar import files
from simpar.dataclass import dataclass
from simpar.engine import start_compiled
from simpar.errors import Infeasible, UserError
from simpar.neighbours import from_flags
from simpar.planner.problem import OBJECTIVES
from simpar.posttraining.exports import TARGETS as OF_POST_TRAINING
from simpar.posttraining.search import OBJECTIVES as POOL_OBJECTIVES
from simpar.ui.answers import legal, numbers, rl_parts, section_fields
from simpar.ui.downloads import as_yaml, export_archive, open_document
from simpar.ui.guard import Guard, TooLarge, describe_body_limit
from simpar.ui.jobs import HOLDABLE
from simpar.ui.state import SOURCE, Allowed, ResolvedRequest, apply_change, as_state, ask, read_state, with_job
from simpar.ui.worker_process import WorkerProcess

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from simpar.scenario import Scenario

HOST, USUAL_PORT = "127.0.0.1", 8877
STATIC = Path(__file__).parent / "static"
REPORT = Path(simpar.__file__).parent / "report" / "html"
MODULES = ("asking.js", "pins.js", "plan.js", "search.js", "section.js", "state.js", "ui.js")
FILES = {
    "/": (STATIC / "index.html", "text/html"),
    "/ui.css": (STATIC / "ui.css", "text/css"),
    "/report.css": (REPORT / "style.css", "text/css"),
    **{f"/{name}": (STATIC / name, "text/javascript") for name in MODULES},
    **{f"/{name}": (REPORT / name, "text/javascript") for name in ("view.js", "timeline.js", "memory.js")},
}
"""Addresses of files: the page's own, and the charts of the result page."""
QUIET_S = 0.1
"""Seconds without another change before the timeline is started, so that moving a slider does not start it."""
MISSING = 'simpar ui: needs starlette and uvicorn, which are not installed; pip install ".[ui]"'
Made = TypeVar("Made")


@dataclass
class AppState:
    """What all addresses share: the initial scenario of pages and the processes for slow work.

    Changes are simulated here one at a time, timelines and neighbours in ``looking``, searches in ``searching``, so
    that the newest change waits for none of them.
    """

    start: Scenario
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    looking: WorkerProcess = field(default_factory=WorkerProcess)
    searching: WorkerProcess = field(default_factory=lambda: WorkerProcess(warms=False))
    public: str = ""  # the host of a proxy on this machine, which lets others in

    @property
    def allowed(self) -> Allowed:
        """Allowed names in addition to the shipped ones."""
        return Allowed.by(self.start)

    def asked(self, body: Mapping[str, Any]) -> ResolvedRequest:
        """The state of a request with its change applied. Raises UserError."""
        return ask(self.scenario(body))

    def scenario(self, body: Mapping[str, Any]) -> Scenario:
        """The scenario of :meth:`asked`, without loading anything. Raises UserError."""
        state, change, job = (body.get(name, {}) for name in ("state", "change", "job"))
        for name, part in {"state": state, "change": change, "job": job}.items():
            if not isinstance(part, dict):
                raise UserError(f"{SOURCE}: {name} = {type(part).__name__}: allowed: values by name")
        scenario = read_state(with_job(state, job), self.allowed)
        whole = {**from_flags(str(body.get("flags", ""))), **change}
        return apply_change(scenario, whole) if whole else scenario

    def state(self) -> dict[str, Any]:
        """The initial state of pages."""
        return as_state(self.start)

    def names(self) -> dict[str, list[str]]:
        """The entries of the page's menus."""
        from simpar.architectures.catalogue import catalogue
        from simpar.frameworks import TARGETS

        allowed = self.allowed
        return {
            "models": list(dict.fromkeys([*catalogue(), *allowed.models])),
            "hardware": list(dict.fromkeys([*files.bundled("clusters"), *allowed.hardware])),
            "stacks": list(dict.fromkeys([*files.bundled("stacks"), *allowed.stacks])),
            "targets": [*TARGETS, *OF_POST_TRAINING],
            "objectives": list(OBJECTIVES),
            "pool_objectives": list(POOL_OBJECTIVES),
            "hold": list(HOLDABLE),
        }

    def end(self) -> None:
        """End the answers in progress."""
        self.looking.end()
        self.searching.end()

    def close(self) -> None:
        """End the processes for slow work."""
        self.looking.close()
        self.searching.close()


def make_app(desk: AppState) -> Guard:
    """The application, to be served or tested."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def start(_request: Request) -> Response:
        return JSONResponse({"state": desk.state(), "names": desk.names(), "version": simpar.__version__})

    async def answer(request: Request) -> Response:
        return _lines(_answer(desk, await _body(request), request), request)

    async def search(request: Request) -> Response:
        return _lines(_search(desk, await _body(request)), request)

    async def stop(_request: Request) -> Response:
        desk.searching.stop()
        return JSONResponse({})

    async def page(request: Request) -> Response:
        scenario = desk.scenario(await _body(request))
        return _lines(desk.looking.run("page", scenario, {}), request)

    async def yaml(request: Request) -> Response:
        scenario = desk.scenario(await _body(request))
        return JSONResponse({"file": {"name": "scenario.yaml", "text": as_yaml(scenario)}})

    async def hand_out(request: Request) -> Response:
        body = await _body(request)
        scenario, lossy = desk.scenario(body), body.get("lossy") is True
        return JSONResponse({"file": await _apart(lambda: export_archive(scenario, body.get("target"), lossy=lossy))})

    async def take_in(request: Request) -> Response:
        body = await _body(request)
        opened = open_document(body.get("name"), body.get("text"), desk.allowed, body.get("state"))
        return JSONResponse({"state": opened})

    posts = {
        "answer": answer, "search": search, "stop": stop, "page": page, "yaml": yaml, "export": hand_out,
        "open": take_in,
    }  # fmt: skip
    routes = [
        *(Route(path, _file(*entry)) for path, entry in FILES.items()),
        Route("/api/start", start),
        *(Route(f"/api/{name}", entry, methods=["POST"]) for name, entry in posts.items()),
    ]
    return Guard(Starlette(routes=routes, exception_handlers=_handlers()), desk.public)


def _handlers() -> dict[Any, Any]:
    """Responses for addresses that cannot answer."""
    from starlette.responses import JSONResponse

    async def refused(_request: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, status_code=400)

    async def cut_off(_request: Request, _error: Exception) -> Response:
        return JSONResponse({"error": describe_body_limit()}, status_code=413, headers={"connection": "close"})

    return {UserError: refused, Infeasible: refused, TooLarge: cut_off}


def _file(path: Path, media_type: str) -> Callable[[Request], Response]:
    """An address that sends a file unchanged."""

    def send(_request: Request) -> Response:
        from starlette.responses import Response

        return Response(path.read_bytes(), media_type=media_type)

    return send


async def _body(request: Request) -> dict[str, Any]:
    """The JSON object in a request. Raises UserError if there is none."""
    content = await request.body()
    try:
        data = files.read_json(content.decode(), SOURCE)
    except UnicodeDecodeError:
        raise UserError(f"{SOURCE}: is not text (UTF-8)") from None
    if not isinstance(data, dict):
        raise UserError(f"{SOURCE}: a {type(data).__name__}: a request is a JSON object")
    return data


def _lines(parts: AsyncGenerator[dict[str, Any]], request: Request) -> Response:
    """Parts as they come, one line of JSON each, as long as the client is connected."""
    from starlette.responses import StreamingResponse

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(parts):
            async for part in parts:
                if await request.is_disconnected():
                    return
                yield json.dumps(part, allow_nan=False).encode() + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def _answer(desk: AppState, body: dict[str, Any], request: Request) -> AsyncGenerator[dict[str, Any]]:
    """The results for a state, the quickest part first; an error is an answer too, with the legal values."""
    try:
        asked = desk.asked(body)
    except UserError as error:
        yield {"error": str(error)}
        return
    brief = bool(body.get("brief"))
    async with desk.turn:
        if await request.is_disconnected():
            return
        try:
            for part in await _apart(lambda: _first_parts(asked, brief=brief)):
                yield part
        except UserError as error:
            yield {"error": str(error), "state": as_state(asked.scenario)}
            if not brief:
                yield {"section": section_fields(asked, desk.names())}
                yield {"choices": await _apart(lambda: legal(asked))}
            return
        if brief:
            return
        yield {"section": section_fields(asked, desk.names())}
        yield {"choices": await _apart(lambda: legal(asked))}
    if body.get("look") and asked.scenario.post_training is None:
        await asyncio.sleep(QUIET_S)
        if await request.is_disconnected():
            return
        async with aclosing(desk.looking.run("look", asked.scenario, {})) as parts:
            async for part in parts:
                yield part


def _first_parts(asked: ResolvedRequest, *, brief: bool) -> list[dict[str, Any]]:
    """What answers a change at once. Raises UserError."""
    if asked.scenario.post_training is not None:
        return rl_parts(asked, brief=brief)
    return [{"numbers": numbers(asked)}]


async def _search(desk: AppState, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any]]:
    """The progress of a search, and what it found."""
    scenario = desk.scenario(body)
    if desk.searching.turn.locked():
        yield {"waiting": "another search is under way"}
    async with aclosing(desk.searching.run("search", scenario, body)) as parts:
        async for part in parts:
            yield part


async def _apart(make: Callable[[], Made]) -> Made:
    """The result of a function, run in a thread so that the server keeps listening."""
    return await asyncio.to_thread(make)


def listen(port: int | None) -> socket.socket:
    """A socket on this machine only: the given port, or else the usual one or any that is free.

    Raises UserError for a port that is in use.
    """
    for wanted in (USUAL_PORT, 0) if port is None else (port,):
        result = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        result.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            result.bind((HOST, wanted))
            result.listen()
        except OSError as error:
            result.close()
            if port is None and wanted:
                continue
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
            raise UserError(f"--port {wanted}: {why}; allowed: one that is free, or no --port") from None
        return result
    raise AssertionError("any free port is tried last")


def serve(desk: AppState, taken: socket.socket, started: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``started`` is called with the page's address. Raises UserError without the web stack."""
    try:
        import uvicorn
    except ImportError:
        raise UserError(MISSING) from None
    Thread(target=start_compiled, daemon=True).start()
    app = make_app(desk)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="off")
    started(f"http://{HOST}:{taken.getsockname()[1]}/")
    server: Any = uvicorn.Server(config)
    ends = server.handle_exit

    def ended(*signal_and_frame: Any) -> None:
        desk.end()  # answers in progress would keep the server waiting
        ends(*signal_and_frame)

    server.handle_exit = ended
    try:
        server.run(sockets=[taken])
    finally:
        desk.close()
