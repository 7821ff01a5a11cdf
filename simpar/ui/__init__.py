"""A local page to plan by hand: every change of a layout is simulated and answered at once.

``state`` is what the page asks for, a scenario as data; ``choices`` are the values that a plan may have; ``answers``
what a state comes to; ``beside`` and ``jobs`` what takes longer, in processes of their own; ``handed_out`` files to
download; ``server`` puts them behind addresses; ``static/`` is the page.
"""
