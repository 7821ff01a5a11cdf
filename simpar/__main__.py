"""The executable: ``simpar`` and ``python -m simpar``. It loads nothing until it can answer an interrupt."""

import gc
import signal
import sys
from typing import NoReturn

from simpar.beside import mixture
from simpar.interrupts import interrupt

GC_THRESHOLDS = (500_000, 20, 50)
"""Thresholds of the garbage collector: at Python's default of 700, it takes a tenth of a command of one second. Looking
through 200,000 young objects, a thousand of which are garbage, takes 80 ms, and most searches make 200,000 to 400,000.
"""


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    code = 130  # simpar.cli.app.INTERRUPTED, before that is there
    try:
        for number in (signal.SIGINT, signal.SIGTERM):  # what ends a job, of Slurm or in a container, is its Ctrl-C
            signal.signal(number, interrupt)
        gc.set_threshold(*GC_THRESHOLDS)
        if refusal := mixture():
            sys.stderr.write(f"{refusal}\n")
            sys.exit(2)  # simpar.cli.app.BAD_INPUT
        from simpar.cli import main as run_command

        code = run_command()
    except KeyboardInterrupt:  # before or behind the command, which answers its own
        sys.stderr.write("interrupted\n")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # what is left is Python's own end
    gc.freeze()  # else Python looks through all that is left once more before it ends: 3 % of a search
    sys.exit(code)


if __name__ == "__main__":
    main()
