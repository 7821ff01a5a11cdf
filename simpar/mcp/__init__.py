"""The door for agents: simpar's verbs as tools of the Model Context Protocol.

``tools`` declares them, ``worker`` is the process that answers one call, ``folder`` holds what that process may open,
``server`` speaks the protocol over standard input and output or HTTP on this machine.
"""

OPEN = ("server",)
"""The modules that other rooms may import; all others are inner."""
