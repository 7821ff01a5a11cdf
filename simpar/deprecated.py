"""Import paths and methods of the last release that moved: they work for one more, with a warning that names the new.

Some old packages have the names of verbs (``from simpar.search import Constraints``), and Python sets an imported
submodule as an attribute of ``simpar``. What such an import gives is therefore called like the verb, too:
``simpar.search(...)`` does what it did, whatever was imported before.
"""

from collections.abc import Callable, Sequence
from functools import update_wrapper
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any
from warnings import warn

if TYPE_CHECKING:
    from importlib.abc import Loader, MetaPathFinder
else:  # the import system asks for methods, not for these classes, which take as long to import as all else here
    Loader, MetaPathFinder = type("Loader", (), {}), type("MetaPathFinder", (), {})

MOVED = {
    "cost.stack": "stacks.stack",
    "explain": "diagnosis",
    "export": "frameworks",
    "learn": "learning",
    "models": "architectures",
    "search.workers": "workers",
    "search": "planner",
    "validate": "validation",
}


def renamed(path: str) -> str | None:
    """Today's path of a module that has moved, or whose package has; None for others.

    >>> renamed("simpar.search.problem")
    'simpar.planner.problem'
    """
    for old, new in MOVED.items():
        if f"{path}.".startswith(f"simpar.{old}."):
            return f"simpar.{new}{path.removeprefix(f'simpar.{old}')}"
    return None


def renamed_method(old: str, new: str) -> Callable[..., Any]:
    """The method ``new`` under its old name."""

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        kind = type(self).__name__
        warn(f"{kind}.{old} has become {kind}.{new}; the old name works until the next release", FutureWarning, 2)
        return getattr(self, new)(*arguments, **keywords)

    call.__name__, call.__doc__ = old, f"Old name of :meth:`{new}`."
    return call


class CallablePackage(ModuleType):
    """A package under the name of a verb: has the package's names, and is called like the verb."""

    def __init__(self, package: ModuleType, verb: Callable[..., Any]) -> None:
        super().__init__(verb.__name__)
        self._package, self._verb = package, verb
        self.__path__: list[str] = []  # or modules below would be found, and run, a second time
        update_wrapper(self, verb, assigned=("__doc__",))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the verb returns."""
        return self._verb(*arguments, **keywords)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._package, name)


class MovedModules(MetaPathFinder, Loader):
    """Finds moved modules under their old paths, after all other finders have found nothing."""

    def find_spec(self, path: str, _: Sequence[str] | None, __: ModuleType | None = None) -> ModuleSpec | None:
        """The spec of a module that exists under its new path."""
        new = renamed(path)
        return ModuleSpec(path, self, is_package=True) if new and find_spec(new) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module of today, or what stands for it and for a verb."""
        new = renamed(spec.name)
        assert new is not None
        warn(f"{spec.name} has become {new}; the old path works until the next release", FutureWarning, stacklevel=2)
        module = import_module(new)
        package, _, name = spec.name.rpartition(".")
        if package == "simpar" and name in import_module(package).__all__:
            module = CallablePackage(module, getattr(import_module(package), name))
        spec.loader_state = getattr(module, "__spec__", None)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is left to do, but the import system has given the module the spec of its old path."""
        assert module.__spec__ is not None
        if module.__spec__.loader_state is not None:
            module.__spec__ = module.__spec__.loader_state
