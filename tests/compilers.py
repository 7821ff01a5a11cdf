"""What tests of the compiled engine need."""

import shutil

import pytest

from simpar.native import COMPILERS

needs_compiler = pytest.mark.skipif(not any(map(shutil.which, COMPILERS)), reason="there is no C compiler here")
