"""A process beside the server for slow work: one job at a time, which can be stopped.

The parts of a job's answer are sent through a pipe as they are made. A job checks between its steps whether it is still
wanted; parts of an unwanted job are dropped.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from multiprocessing import get_context
from threading import Thread
from typing import TYPE_CHECKING, Any

from simpar.engine import start_compiled
from simpar.errors import Infeasible, UserError
from simpar.ui.jobs import JOBS, JobSlot, Stopped

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from simpar.scenario import Scenario

Part = dict[str, Any]
PROCESS_DIED_ERROR = "the background process ended unexpectedly (out of memory?); the next request starts another"


class WorkerProcess:
    """A process that runs the jobs of :data:`simpar.ui.jobs.JOBS`, started with the first one.

    If it ``warms``, it loads the compiled engine meanwhile.
    """

    def __init__(self, *, warms: bool = True) -> None:
        self.warms = warms
        self.turn = asyncio.Lock()
        self.number = 0
        self._parts: asyncio.Queue[Part | None] = asyncio.Queue()
        self._process: Any = None
        self._connection: Connection[Any, Any] | None = None
        self._wanted: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self, job: str, scenario: Scenario, options: Part) -> AsyncGenerator[Part]:
        """The parts of a job's answer; closing the generator stops the job."""
        async with self.turn:
            connection = self.start()
            self.number += 1
            self._parts = asyncio.Queue()
            self._wanted.value = self.number
            connection.send((self.number, job, scenario, options))
            try:
                while (part := await self._parts.get()) is not None:
                    yield part
            finally:
                self._wanted.value = 0

    def stop(self) -> None:
        """Ask the running job to end with what it has; the listener still gets its last parts."""
        if self._wanted is not None:
            self._wanted.value = 0

    def start(self) -> Connection[Any, Any]:
        """The pipe to the process, which is started if there is none."""
        if self._connection is None:
            context = get_context("spawn")
            self._connection, other = context.Pipe()
            self._wanted = context.Value("q", 0)
            self._process = context.Process(target=serve_jobs, args=(other, self._wanted, self.warms))
            self._process.start()
            other.close()
            self._loop = asyncio.get_running_loop()
            listener = (self._connection, self._loop)
            Thread(target=self._listen, args=listener, daemon=True).start()
        return self._connection

    def end(self) -> None:
        """Tell listeners that nothing more comes; may be called from a signal handler."""
        self.stop()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._parts.put_nowait, None)

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.join()
        self._process = self._connection = None

    def _listen(self, connection: Connection[Any, Any], loop: asyncio.AbstractEventLoop) -> None:
        """Pass on the parts that the process sends, until it ends."""
        with suppress(RuntimeError):  # the loop has ended before the process
            try:
                while True:
                    loop.call_soon_threadsafe(self._hear, *connection.recv())
            except (EOFError, OSError):
                loop.call_soon_threadsafe(self._died, connection)

    def _hear(self, number: int, part: Part | None) -> None:
        if number == self.number:
            self._parts.put_nowait(part)

    def _died(self, connection: Connection[Any, Any]) -> None:
        """The process has ended: tell listeners, and let the next job start another one."""
        if connection is self._connection:
            self._connection = None
            self._parts.put_nowait({"error": PROCESS_DIED_ERROR})
            self._parts.put_nowait(None)


def serve_jobs(connection: Connection[Any, Any], wanted: Any, warms: bool) -> None:
    """Run the jobs that come through a pipe until it is closed; ``wanted`` holds the number of the wanted job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the server, which ends this process
    if warms:
        Thread(target=start_compiled, daemon=True).start()
    with suppress(EOFError, BrokenPipeError):
        while True:
            number, job, scenario, options = connection.recv()

            def say(part: Part | None, number: int = number) -> None:
                connection.send((number, part))

            def is_stopped(number: int = number) -> bool:
                return bool(wanted.value != number)

            run_job(JOBS[job], JobSlot(scenario, options, say, is_stopped))
            say(None)


def run_job(job: Callable[[JobSlot], None], room: JobSlot) -> None:
    """Run one job; an error that the user can fix is a part of its answer."""
    try:
        job(room)
    except (UserError, Infeasible) as error:
        room.say({"error": str(error)})
    except Stopped:
        pass
