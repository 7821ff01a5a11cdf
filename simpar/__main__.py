"""``python -m simpar`` is the same as ``simpar``."""

from simpar.cli import main

main()
