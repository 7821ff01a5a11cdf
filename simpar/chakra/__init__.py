"""Execution traces: a simulated step as files that other simulators replay, and traces of others as Programs.

``wire`` and ``messages`` are the file format, ``calls`` and ``step`` the events of every rank in a step, ``fabric`` and
``write`` the files. ``read`` turns Chakra's files, and ``host_trace`` torch's (with ``host_nodes`` and ``host_work``),
into a ``recording``, of which ``replay`` makes a Program; ``sources`` chooses between them by file name.
"""

OPEN = ("replay", "sources", "wire", "write")
"""The modules that other rooms may import; all others are inner."""
