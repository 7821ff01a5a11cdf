"""Execution traces: a simulated step as files that other simulators replay, and traces of others as Programs.

``wire`` and ``messages`` are the file format, ``calls`` and ``step`` what every rank of a step does, ``fabric`` and
``write`` the files. ``read`` takes Chakra's files and ``host_trace`` torch's (with ``host_nodes`` and ``host_work``) to
a ``recording``, of which ``replay`` makes a Program; ``sources`` goes by the names of files.
"""
