"""What tests of the compiled engine need."""

import shlex
import shutil
import sys

import pytest

from simpar.native import COMPILERS, NativeLibrary

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler here")
FAILING = shlex.join([sys.executable, "-c", "exit(1)"])
"""A compiler that compiles nothing."""


def both_ways(module, call):
    """What a call gives without the module's LIBRARY, and with it, however little there is to do."""
    with pytest.MonkeyPatch.context() as patch:
        results = []
        for why_not in ("not here", ""):
            library = NativeLibrary(module.LIBRARY.source, 0, module.LIBRARY.constants, why_not=why_not)
            patch.setattr(module, "LIBRARY", library)
            results.append(call())
    return tuple(results)
