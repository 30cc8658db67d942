"""One pipeline with a Spark of its own, for commands that derive or trace rows themselves."""

import argparse
from typing import TYPE_CHECKING

from headwater.cli.arguments import load_config
from headwater.inspect.pipelines import load_pipelines, spark_of, wanted

if TYPE_CHECKING:
    from headwater import config
    from headwater.pipelines.running.loaded_pipeline import Pipeline


def started_pipeline(args: argparse.Namespace, name: str) -> "tuple[config.Config, Pipeline]":
    """The configuration and the pipeline. Raises UsageError if there is no such pipeline."""
    loaded = load_config(args)
    (name,) = wanted(loaded, [name])
    (pipeline,) = load_pipelines(loaded, lambda: spark_of(loaded, f"headwater {name}"), [name])
    return loaded, pipeline
