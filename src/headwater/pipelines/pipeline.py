"""`@hw.pipeline`: marks a function as a pipeline, and finds it again in its file."""

import importlib.util
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from headwater.config import nearest
from headwater.errors import ConfigError, HeadwaterError, PipelineError
from headwater.pipelines.settings import PipelineSettings
from headwater.pipelines.spark_errors import first_line, is_own

if TYPE_CHECKING:
    from collections.abc import Callable

    from headwater.pipelines.flow import Flow

Function: TypeAlias = "Callable[[Flow], None]"
_MARK: Final = "__headwater_pipeline__"


def pipeline(function: Function) -> Function:
    """The function describes what is derived: it is called with a `Flow` when the pipeline starts,
    and again for a rebuild or a verification, with the log read differently each time. So it must
    do nothing but describe.
    """
    setattr(function, _MARK, True)
    return function


def load(settings: PipelineSettings, directory: Path) -> Function:
    """The function of [pipeline.NAME]. `directory` is where a relative `file` begins."""
    file = directory / settings.file
    if not file.is_file():
        raise ConfigError(
            f"pipeline {settings.name}: there is no file {file}",
            hint=f"`file` of [pipeline.{settings.name}] begins where the configuration file is",
        )
    found = _pipelines_in(settings.name, file)
    wanted = settings.function or settings.name.replace("-", "_")
    if wanted in found:
        return found[wanted]
    if settings.function is None and len(found) == 1:
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


def _pipelines_in(name: str, file: Path) -> dict[str, Function]:
    # By a name of its own: two files may be called the same, and the module stays importable for
    # Spark's workers, which unpickle its functions by value (see register_pickle_by_value).
    module_name = f"headwater_pipeline_{name.replace('-', '_')}"
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    added = str(file.parent)  # what lies beside it can be imported
    if added not in sys.path:
        sys.path.insert(0, added)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        why = failed(name, error)
        if isinstance(why, PipelineError):  # to be mended in that file, not to be tried again
            why = ConfigError(why.what, detail=why.detail, hint=f"it was read from {file}")
        raise why from error
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return {
        each.__name__: each
        for each in vars(module).values()
        if callable(each) and getattr(each, _MARK, False)
    }


def failed(name: str, error: BaseException) -> HeadwaterError:
    """What went wrong in the user's own code, and in which of its lines."""
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
