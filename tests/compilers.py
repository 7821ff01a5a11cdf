"""What tests of the compiled engine need."""

import shlex
import shutil
import sys

import pytest

from simpar.native import COMPILERS

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler here")
FAILING = shlex.join([sys.executable, "-c", "exit(1)"])
"""A compiler that compiles nothing."""
