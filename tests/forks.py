"""Ranks of test jobs that are forked from one process which has imported torch, where torchrun would import it anew.

Importing torch and the runtime takes a process five seconds; what a test then trains takes a tenth of one. ``serve``
imports them once and forks ranks for whoever asks at a socket; ``ask`` stands where torchrun would, with the same
exit code, environment and log files. Nothing is computed before a fork, so that no thread is lost by it.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

POLL_S = 0.01
LOCALHOST = "127.0.0.1"
PRELOADED = (
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.profiler",
    "torch._dynamo",
    "simpar.runtime.train",
    "simpar.runtime.servers",
    "simpar.runtime.worker",
    "simpar.calibrate.worker",
)


def serve(address: str) -> None:
    """Answer one request after the other, until whoever started this ends."""
    sys.path.insert(0, str(Path(__file__).with_name("runtime")))
    for name in (*PRELOADED, "matrix_job"):
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines:
                request = json.loads(lines.readline())
                code = _together(request, connection, listener)
                try:
                    connection.sendall(f"{code}\n".encode())
                except OSError:
                    continue  # the one that asked was ended


def _together(request: dict, connection: socket.socket, listener: socket.socket) -> int:
    """Run the ranks of a request; 0, or 1 after the first that fails or once nobody waits for them: all are ended."""
    with socket.create_server((LOCALHOST, 0)) as free:
        port = free.getsockname()[1]
    ranks = {}
    for rank in range(request["processes"]):
        child = os.fork()
        if child == 0:
            listener.close()
            connection.close()
            _be_rank(request, rank, port)
        ranks[child] = rank
    connection.setblocking(False)
    code = 0
    while ranks and not code:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            ranks.pop(child)
            code = 1 if status else 0
        elif _left(connection):
            code = 1
        else:
            time.sleep(POLL_S)
    connection.setblocking(True)
    for child in ranks:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return code


def _left(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def _be_rank(request: dict, rank: int, port: int) -> None:
    """Be a rank, as torchrun starts one; never returns."""
    code = 1
    try:
        os.chdir(request["folder"])
        _redirect(Path(request["logs"]) / str(rank))
        os.environ.clear()
        os.environ.update(request["environment"])
        local = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1}
        local |= {"WORLD_SIZE": request["processes"], "LOCAL_WORLD_SIZE": request["processes"]}
        local |= {"MASTER_ADDR": LOCALHOST, "MASTER_PORT": port, "TORCHELASTIC_RESTART_COUNT": 0}
        os.environ.update({name: str(value) for name, value in local.items()})
        sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        sys.argv = request["arguments"]
        code = _main(sys.argv[0])
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # noqa: BLE001 - the rank's log has it, as it has what Python prints of a process
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _main(name: str) -> int:
    """Run a script, or a module's main."""
    if name.endswith(".py"):
        sys.path.insert(0, str(Path(name).parent))
        runpy.run_path(name, run_name="__main__")
        return 0
    return int(importlib.import_module(name).main())


def _redirect(logs: Path) -> None:
    logs.mkdir(parents=True, exist_ok=True)
    for stream, name in ((1, "stdout.log"), (2, "stderr.log")):
        opened = os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(opened, stream)
        os.close(opened)


def ask(address: str, processes: int, logs: str, *arguments: str) -> int:
    """Have a script or module run with arguments on ``processes`` ranks; as torchrun's exit code."""
    request = {
        "arguments": arguments, "processes": processes, "logs": str(Path(logs).resolve()), "folder": os.getcwd(),
        "environment": dict(os.environ),
    }  # fmt: skip
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        connection.sendall(json.dumps(request).encode() + b"\n")
        answer = connection.makefile("rb").readline()
    return int(answer or 1)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(ask(sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
