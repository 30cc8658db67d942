"""`@hw.pipeline`, which marks a function as a pipeline, and the loader of pipeline files."""

import importlib.util
import sys
import traceback
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final, TypeAlias

from headwater import extras
from headwater.errors import ConfigError, HeadwaterError, PipelineError
from headwater.pipelines.settings import PipelineSettings, PythonSettings, ViewSettings
from headwater.pipelines.spark_errors import first_line, is_own
from headwater.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.pipelines.flow import Flow

Function: TypeAlias = "Callable[[Flow], None]"
_MARK: Final = "__headwater_pipeline__"
MODULE_PREFIX: Final = "headwater_pipeline_"  # of the names that pipelines' files are loaded by


def pipeline(function: Function) -> Function:
    """The function describes the derivation: it is called with a `Flow` when the pipeline starts,
    and again for a rebuild or a verification, with another way to read the log. So it must have no
    side effects.
    """
    setattr(function, _MARK, True)
    return function


def is_pipeline(function: object) -> bool:
    return callable(function) and getattr(function, _MARK, False) is True


def load(settings: PipelineSettings, directory: Path, modules: Collection[Path] = ()) -> Function:
    """The function of [pipeline.NAME]. A relative `file` is resolved from `directory`; `modules`
    are files beside it that it imports. Raises ConfigError.
    """
    extras.require(f"pipeline {settings.name}", "pipelines")
    file = directory / settings.file
    if not file.is_file():
        raise ConfigError(
            f"pipeline {settings.name}: there is no file {file}",
            hint=f"`file` of [{section_of(settings)}] is relative to the configuration file",
        )
    if isinstance(settings, ViewSettings):
        from headwater.pipelines.views.view_file import view_function

        return view_function(settings, directory)
    found = _pipelines_in(settings.name, file, modules)
    function = settings.function if isinstance(settings, PythonSettings) else None
    wanted = function or settings.name.replace("-", "_")
    if wanted in found:
        return found[wanted]
    if function is None and len(found) == 1:
        return next(iter(found.values()))
    if not found:
        raise ConfigError(
            f"pipeline {settings.name}: {file.name} has no pipeline",
            hint="put @hw.pipeline in front of its function",
        )
    meant = nearest(wanted, tuple(found))
    raise ConfigError(
        f"pipeline {settings.name}: {file.name} has no pipeline {wanted}",
        detail="it has " + ", ".join(found),
        hint=f'function = "{meant or next(iter(found))}" chooses one',
    )


def section_of(settings: PipelineSettings) -> str:
    kind = "view" if isinstance(settings, ViewSettings) else "pipeline"
    return f"{kind}.{settings.name}"


def _pipelines_in(name: str, file: Path, modules: Collection[Path]) -> dict[str, Function]:
    # Under a unique name: two files may have the same one. Spark's workers get its functions by
    # value, and those of the modules beside it: workers outlive a version of the file.
    module_name = f"{MODULE_PREFIX}{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    added = str(file.parent)  # modules beside it can be imported
    if added not in sys.path:
        sys.path.insert(0, added)
    importlib.invalidate_caches()  # a module beside it may be new
    try:
        with _without_bytecode():
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # must not end the other pipelines
        why = failed(name, error)
        if isinstance(why, PipelineError):  # to be fixed in that file: no retry
            why = ConfigError(why.what, detail=why.detail, hint=f"it was read from {file}")
        raise why from error
    pickle_by_value(module_name, file)
    for path in modules:
        pickle_by_value(_name_of(path, file.parent), path)
    return {
        function.__name__: _without_bytecode()(function)  # it may import when it is called
        for function in vars(module).values()
        if is_pipeline(function)
    }


@contextmanager
def _without_bytecode() -> Iterator[None]:
    """Cached bytecode is validated by the modification time in seconds and the size: a second
    change within a second would load the first.
    """
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


def _name_of(module: Path, root: Path) -> str:
    parts = module.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def pickle_by_value(name: str, file: Path) -> None:
    """Also a module that is imported later, within a function: cloudpickle only needs its name in
    sys.modules.
    """
    from pyspark import cloudpickle

    loaded = sys.modules.get(name)
    if loaded is None:
        sys.modules[name] = ModuleType(name)
    elif Path(getattr(loaded, "__file__", None) or "").resolve() != file.resolve():
        return  # another module has the name already
    try:
        cloudpickle.register_pickle_by_value(sys.modules[name])  # type: ignore[no-untyped-call]
    finally:
        if loaded is None:
            del sys.modules[name]


def failed(name: str, error: BaseException) -> HeadwaterError:
    """An error of the user's code, with the line in its file."""
    if isinstance(error, HeadwaterError):
        return error
    if isinstance(error, SyntaxError):
        return PipelineError(
            f"pipeline {name}: {Path(error.filename or '').name}:{error.lineno}: {error.msg}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_own(frame.filename)]
    where = f"{Path(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
    text = str(error).split("\n\nJVM stacktrace")[0].strip()
    if "org.apache.spark" in text or type(error).__module__.startswith("pyspark."):
        text = first_line(text)
    return PipelineError(f"pipeline {name}: {where}{type(error).__name__}", detail=text)
