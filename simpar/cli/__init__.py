"""The command line: a thin layer that turns flags into a scenario, calls the library and prints.

A new command is one new file here, a word of ``ORDER``, and its test.
"""

import errno
import os
import sys
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated

import typer
from typer.exceptions import TyperException
from typer.models import CommandInfo

from simpar.cli.about import version as _version
from simpar.cli.app import BAD_INPUT, INFEASIBLE, INTERRUPTED, UNREAD, app
from simpar.cli.flags import better_said, complete_commands
from simpar.errors import Infeasible, UserError

OPEN = ()
"""The modules that other rooms may import; all others are inner."""

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search for them, in all installed packages
for _module in iter_modules(__path__):  # commands register themselves when they are imported
    import_module(f"{__name__}.{_module.name}")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # errors when writing to standard output
ORDER = (
    "simulate", "search", "check", "compare", "report", "export", "import", "tokenize", "data", "run", "explain",
    "replay", "ui", "mcp", "plot", "collective", "calibrate", "learn", "validate", "list", "schema", "doctor",
)  # fmt: skip


def _name(command: CommandInfo) -> str:
    return command.name or command.callback.__name__  # type: ignore[union-attr]


app.registered_commands.sort(key=lambda command: ORDER.index(_name(command)))


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        typer.echo(f"simpar {_version()}")
        raise typer.Exit


def _import_numpy(arguments: list[str]) -> None:
    """Import NumPy for a command, without the threads of its BLAS.

    Nothing here multiplies large matrices, and every thread waits busily for a tenth of a second after it is started.
    Processes that a command starts have the environment as it was.
    """
    if "OPENBLAS_NUM_THREADS" in os.environ or arguments[:1] not in [[name] for name in ORDER] or "--help" in arguments:
        return
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    import_module("numpy")
    del os.environ["OPENBLAS_NUM_THREADS"]


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code; an error that the user can fix is one line on standard error."""
    _import_numpy(arguments)
    complete_commands(*([] if "_SIMPAR_COMPLETE" in os.environ else arguments[:1] or [""]))
    try:
        code = int(app(arguments, prog_name="simpar", standalone_mode=False) or 0)
        sys.stdout.flush()
        return code
    except Infeasible as error:
        return _fail(str(error), INFEASIBLE)
    except UserError as error:
        return _fail(str(error), BAD_INPUT)
    except TyperException as error:
        return _fail(better_said(error.format_message(), arguments), BAD_INPUT)
    except (BrokenPipeError, SystemExit) as end:
        if not isinstance(end.__context__ if isinstance(end, SystemExit) else end, BrokenPipeError):
            raise
        _drop_output()  # typer exits with 1 if a command itself hits the broken pipe
        return UNREAD
    except OSError as error:
        if error.filename is None and error.errno not in FULL:
            raise
        if error.filename is None:
            _drop_output()
        return _fail(f"{error.filename or 'standard output'}: {error.strerror}", BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", INTERRUPTED)


def _drop_output() -> None:
    """Standard output is closed: discard the rest, which Python would otherwise try to write again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"{message}\n")
    return code


def main() -> int:
    """Run the command of this process and return its exit code."""
    named = [command for command in app.registered_commands if _name(command) in sys.argv[1:2]]
    app.registered_commands = named or app.registered_commands  # typer builds the parsers of all that are registered
    return run(sys.argv[1:])
