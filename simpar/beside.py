"""The other project of this name: installed into one folder, each of the two overwrites files of the other."""

import os
from functools import cache

SITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OTHER, ENDING = "simpar-", ".dist-info"
"""What the folder of the other's metadata begins and ends with; ours is simpar_planner-VERSION.dist-info."""


@cache
def mixture(site: str = SITE) -> str:
    """Why this installation cannot be used, in one line; "" where no other distribution shares the package's folder."""
    try:
        others = [name for name in os.listdir(site) if name.startswith(OTHER) and name.endswith(ENDING)]
    except OSError:  # a zip file has no other inside
        return ""
    if not others:
        return ""
    version = others[0].removeprefix(OTHER).removesuffix(ENDING)
    return (
        f"{site}: simpar {version}, another project, is installed beside simpar-planner under the same name, and each "
        "overwrites files of the other; allowed: an environment for each (pip uninstall simpar simpar-planner, then "
        "install one of them)"
    )
