"""Names of a package that are imported when they are first used (PEP 562)."""

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], modules: Collection[str] = ()
) -> Callable[[str], Any]:
    """`__getattr__` of the package. `homes` are the modules that have the names; a name in
    `modules` is the module itself. Raises MissingExtra if a package of an extra is not installed.
    """

    def value_of(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            home = import_module(homes[name])
        except ModuleNotFoundError as error:
            from headwater.extras import explained

            missing = explained(error, f"{package}.{name}")
            raise missing or error from error
        value = home if name in modules else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return value_of
