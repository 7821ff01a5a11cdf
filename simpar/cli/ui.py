"""``simpar ui``: a local page to plan by hand."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from simpar.cli.app import app, console
from simpar.cli.flags import RUN_FLAGS, ScenarioFlag, values_by_key, with_flags
from simpar.errors import UserError

UI_FLAGS = (
    ScenarioFlag("--port", "Port on this machine (default: 8877, or any free one if that is taken)", kind=int),
    ScenarioFlag("--no-open", "Only print the address of the page, instead of opening it in a browser", kind=bool),
    ScenarioFlag("--public", "Address under which a proxy on this machine serves the page, once it knows who asks"),
    ScenarioFlag("--set", "Any scenario key: dotted.key=value; may be repeated", kind=list[str]),
)
JOB = {
    "model": "llama-3-8b", "cluster.hardware": "dgx-h100", "training.seq_len": 8192, "training.global_batch": 64,
}  # fmt: skip
"""What the page starts with where neither a scenario nor a flag says it: the first job of README."""
ZERO = 3
"""The stage of ZeRO of that job, where no other choice of the plan is given."""
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")  # without one, Linux has only text browsers


@app.command(epilog="Example: simpar ui llama-3.1-405b-16384-h100")
@with_flags((*RUN_FLAGS, *UI_FLAGS), "A shipped scenario, a scenario file or a plan file", plan=True)
def ui(scenario: str | None, **values: Any) -> None:
    """Plan by hand in the browser, simulated at once."""
    from simpar.scenario import load_scenario

    port = values["port"]
    if port is not None and not 0 < port < 2**16:
        raise UserError(f"--port {port}: allowed: 1 to {2**16 - 1}")
    public = _host_of(values["public"])
    flags, settings = values_by_key(values, RUN_FLAGS), list(values["set_"] or [])
    start = load_scenario(scenario, flags if scenario else with_job(flags, settings), settings)
    from simpar.ui.server import MISSING, AppState, listen, serve

    if not (find_spec("starlette") and find_spec("uvicorn")):
        raise UserError(MISSING)
    desk = AppState(start, public=public)
    desk.asked({"state": desk.state()})
    with listen(port) as taken:
        serve(desk, taken, lambda address: _started(address, opens=not values["no_open"]))


def with_job(flags: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Flags by dotted key, with the job of the page beneath them."""
    given = {key for key, value in flags.items() if value is not None} | {each.partition("=")[0] for each in settings}
    job = JOB if any(key.startswith("plan.") for key in given) else {**JOB, "plan.zero": ZERO}
    return {**flags, **{key: value for key, value in job.items() if key not in given}}


def _started(address: str, *, opens: bool) -> None:
    """Print the page's address, and open it."""
    console().print(f"simpar ui: {address} (Ctrl-C ends it)")
    if opens and (sys.platform != "linux" or any(os.environ.get(name) for name in SCREENS)):
        import webbrowser

        webbrowser.open(address)


def _host_of(address: str | None) -> str:
    """The host, with its port if one is said, of an address; "" for none. Raises UserError."""
    from urllib.parse import urlsplit

    if address is None:
        return ""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc or parts.path.strip("/") or parts.username:
        raise UserError(f"--public {address}: allowed: an address without a path, such as https://plan.example.org")
    return parts.netloc.lower()
