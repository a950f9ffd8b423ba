"""What happens as soon as another package is imported, whoever imports it.

So this package registers itself with Transformers without importing it.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def once_imported(package: str, act: Callable[[], object]) -> None:
    """Calls ``act`` now if a package is imported, otherwise as soon as it is.

    Submodules are imported after their package, so whichever of them is imported first,
    ``act`` comes before it.

    Args:
        package: the name of one that is in no other.
        act: may import the package and its submodules.
    """
    if package in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _After(package, act))


class _After(MetaPathFinder):
    """Finds a package as the other finders do, and acts once it has been executed."""

    def __init__(self, package: str, act: Callable[[], object]) -> None:
        self.package, self.act = package, act

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """The package's specification; None for every other module.

        Libraries ask for it too where they only want to know whether there is one.
        """
        if name != self.package:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self.act()

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
