"""One module per Kafka API; see registry.py."""

import importlib
import pkgutil


def load_all() -> None:
    """Imports every module of this folder, which registers its API."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
