"""Models that are the user's Python functions, ``module:function``: the only place where simpar runs their code."""

import os
import sys
from collections.abc import Mapping
from typing import Any

from simpar.errors import UserError

LIBRARY = "transformers"
"""The library whose classes are captured by name. It is installed and trusted: its code needs no consent."""
ALLOWED = "allowed: module:function that returns a torch module, or (module, example inputs)"


def is_code(model: str) -> bool:
    """Whether a model's name is a function of the user's, ``module:function``."""
    module, colon, function = model.partition(":")
    return (
        bool(colon)
        and module != LIBRARY
        and function.isidentifier()
        and all(part.isidentifier() for part in module.split("."))
    )


def class_of(model: str) -> tuple[str, str]:
    """(Where, class) of ``config.json:CLASS`` and ``transformers:CLASS``; the class is "" for all other names."""
    where, _, name = model.rpartition(":")
    is_place = where == LIBRARY or where.endswith((".json", ".yaml")) or "/" in where
    return (where, name) if is_place and name.isidentifier() else (model, "")


def call_user_function(name: str) -> Any:
    """What the user's ``module:function`` returns; modules are also looked for in the working directory.

    Raises UserError where it cannot be found.
    """
    from importlib import import_module

    module, _, function = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # last: nothing installed is shadowed
    try:
        return getattr(import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise UserError(f"model = {name}: cannot be imported ({error}); {ALLOWED}") from None


def load_user_module(name: str) -> Any:
    """The module that ``module:function`` returns, without example inputs. Raises UserError where it is not found."""
    made = call_user_function(name)
    return made[0] if isinstance(made, tuple) else made


def require_consent(model: Any, source: str, given: Mapping[str, Any]) -> None:
    """Raise UserError if a file names code as its model and the command line does not name the same function."""
    if isinstance(model, str) and is_code(model) and given.get("model") != model:
        raise UserError(
            f"{source}: model = {model}: is code, which a file may not run; if you trust it, pass --model {model}"
        )
