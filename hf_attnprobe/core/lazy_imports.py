"""Call a function when another package is imported.

With it, hf_attnprobe registers its models with Transformers without importing Transformers itself.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


def call_after_import(package: str, callback: Callable[[], object]) -> None:
    """Call a function as soon as a package is imported.

    If the package has been imported already, the function is called immediately. Python imports a
    package before its submodules, so the function also runs before the code of any submodule.

    Args:
        package: Name of a top-level package.
        callback: Function without arguments; it may import the package and its submodules.
    """
    if package in sys.modules:
        callback()
    else:
        sys.meta_path.insert(0, _ImportHook(package, callback))


class _ImportHook(MetaPathFinder):
    """Finder that delegates to the other finders and calls a function after the import.

    Attributes:
        package: Name of the package.
        callback: Function to call after the package has been executed.
    """

    def __init__(self, package: str, callback: Callable[[], object]) -> None:
        self.package, self.callback = package, callback

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find the package, and arrange that the callback runs after its import.

        Python calls this method for every import. Some libraries call it only to check whether the
        package is installed. Therefore the callback does not run here, but after the code of the
        package.

        Args:
            name: Name of the module to find.
            path: Search path of the parent package; None for a top-level module.
            target: Module to reload, if any.

        Returns:
            The import specification of the package; None for every other module.
        """
        if name != self.package:
            return None
        other_finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in other_finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute_module = spec.loader.exec_module

            # Replace the loader's method with one that also calls the function.
            def execute_and_call(module: ModuleType) -> None:
                execute_module(module)
                sys.meta_path.remove(self)
                self.callback()

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
