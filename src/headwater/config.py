"""The configuration of a project: all sections of headwater.toml, each defined by its owner.

[broker], [client], [spark], [console], [gateway], [gateway.statsd], [schemas], [events] and
[subjects] occur once; [capture.NAME], [sink.NAME], [pipeline.NAME], [view.NAME], [alert.NAME],
[subject.NAME], [gateway.zeromq.NAME] and [gateway.webhook.NAME] may occur several times.
How values are found is described in settings_loader.py.

This module is imported before the broker starts, so it stays light: no third-party imports.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headwater import settings_loader
from headwater.alert_settings import AlertSettings
from headwater.capture.settings import CaptureSettings
from headwater.console_settings import ConsoleSettings
from headwater.direct.settings import StatsdSettings, ZeroMqSettings
from headwater.errors import ConfigError
from headwater.events.settings import EventsSettings
from headwater.gateway_settings import GatewaySettings
from headwater.pipelines.settings import (
    PipelineSettings,
    PythonSettings,
    SparkSettings,
    ViewSettings,
)
from headwater.schemas.settings import SchemasSettings
from headwater.setting_sources import FILE_NAME, Mistake, Sections, fields_of, key_of
from headwater.settings import BrokerSettings, ClientSettings
from headwater.settings_loader import Setting
from headwater.sinks.settings import SinkSettings
from headwater.subjects.settings import KeyPlaces, SubjectSettings, SubjectsSettings, places
from headwater.webhook_settings import WebhookSettings

__all__ = [
    "FILE_NAME",
    "SECTIONS",
    "Config",
    "Mistake",
    "Setting",
    "fields_of",
    "key_of",
    "load",
    "read",
]

SECTIONS: Final = Sections(
    single={
        "broker": BrokerSettings,
        "client": ClientSettings,
        "spark": SparkSettings,
        "console": ConsoleSettings,
        "gateway": GatewaySettings,
        "gateway.statsd": StatsdSettings,
        "schemas": SchemasSettings,
        "events": EventsSettings,
        "subjects": SubjectsSettings,
    },
    named={
        "capture": CaptureSettings,
        "sink": SinkSettings,
        "pipeline": PythonSettings,
        "view": ViewSettings,
        "gateway.zeromq": ZeroMqSettings,
        "gateway.webhook": WebhookSettings,
        "alert": AlertSettings,
        "subject": SubjectSettings,
    },
)


@dataclass(frozen=True, slots=True)
class Config:
    """Everything that was read. With mistakes, the default stands for each wrong value; a capture
    that lacks a required setting is left out.
    """

    path: Path | None
    broker: BrokerSettings
    client: ClientSettings
    spark: SparkSettings
    console: ConsoleSettings
    gateway: GatewaySettings
    statsd: StatsdSettings
    zeromq: Mapping[str, ZeroMqSettings]
    schemas: SchemasSettings
    events: EventsSettings
    captures: Mapping[str, CaptureSettings]
    sinks: Mapping[str, SinkSettings]
    pipelines: Mapping[str, PipelineSettings]  # and views
    webhooks: Mapping[str, WebhookSettings]  # that are received
    alerts: Mapping[str, AlertSettings]
    subjects: SubjectsSettings
    subject_kinds: Mapping[str, SubjectSettings]
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]
    mistakes: tuple[Mistake, ...]

    def bootstrap(self) -> str:
        """Where commands find a broker."""
        return self.broker.bootstrap or self.broker.reached_at(self.broker.listen)

    @property
    def base(self) -> Path:
        """The directory that relative paths of the file begin at."""
        return self.path.parent if self.path else Path.cwd()

    def key_places(self) -> KeyPlaces:
        """Where the keys of personal fields are."""
        return places(self.subjects, str(self.base), self.broker.data_dir)

    def state_dir(self) -> Path:
        """Where checkpoints and states of pipelines are. Raises ConfigError."""
        if "://" in (self.spark.state_dir or ""):
            raise ConfigError(
                "spark.state_dir has to be a directory",
                detail=f"{self.spark.state_dir}: checkpoints in object stores and HDFS do not work"
                " yet; it would be taken for a local path",
                hint="on a cluster a directory that all machines share, such as a mounted volume",
            )
        if self.spark.state_dir:
            return (self.base / self.spark.state_dir).resolve()
        return (self.base / self.broker.data_dir / "pipelines").resolve()


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """The configuration, whole and right. Raises ConfigError that names every mistake in it.

    `flags` has the values given on the command line by setting name ("broker.listen"); None
    stands for a flag that was not given.
    """
    config = read(flags, path=path, environ=environ, cwd=cwd)
    settings_loader.check(config.mistakes)
    return config


def read(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environ: Mapping[str, str] | None = None,
    cwd: str | None = None,
) -> Config:
    """As `load`, but mistakes are returned instead of raised."""
    loaded = settings_loader.read(SECTIONS, flags, path=path, environ=environ, cwd=cwd)
    views = loaded.named["view"]
    single = loaded.single
    base = str(loaded.path.parent if loaded.path else Path.cwd())
    keys = places(single["subjects"], base, single["broker"].data_dir)
    subjects: dict[str, Any] = {"keys": keys, "subjects": loaded.named["subject"]}
    return Config(
        loaded.path,
        loaded.single["broker"],
        loaded.single["client"],
        loaded.single["spark"],
        loaded.single["console"],
        loaded.single["gateway"],
        loaded.single["gateway.statsd"],
        loaded.named["gateway.zeromq"],
        loaded.single["schemas"],
        loaded.single["events"],
        loaded.named["capture"],
        loaded.named["sink"],
        {
            **{name: replace(view, views=views, **subjects) for name, view in views.items()},
            **{name: replace(own, **subjects) for name, own in loaded.named["pipeline"].items()},
        },
        loaded.named["gateway.webhook"],
        loaded.named["alert"],
        loaded.single["subjects"],
        loaded.named["subject"],
        loaded.settings,
        loaded.raw_sections,
        (
            *loaded.mistakes,
            *_same_names(views, loaded.named["pipeline"]),
            *_without_gateway(loaded),
            *_unknown_subjects(loaded),
            *_not_encrypted(loaded),
            *_without_secret(loaded.named["gateway.webhook"]),
            *_without_mail(loaded.named["alert"], loaded.named["sink"]),
        ),
    )


def _unknown_subjects(loaded: settings_loader.Loaded) -> list[Mistake]:
    """What a pipeline decrypts has to be somebody's."""
    kinds = loaded.named["subject"]
    return [
        Mistake(f"[{section}.{name}]", f"decrypt names {kind}", f"a section [subject.{kind}]")
        for section in ("pipeline", "view")
        for name, pipeline in loaded.named[section].items()
        for kind in pipeline.decrypt
        if kind not in kinds
    ]


def _not_encrypted(loaded: settings_loader.Loaded) -> list[Mistake]:
    """Messages that are written without a look into them would be personal data in plain text."""
    marked = {topic for kind in loaded.named["subject"].values() for topic in kind.topics}
    return [
        Mistake(
            f"[gateway.zeromq.{name}]",
            f"topic {zeromq.topic} has personal fields, which ZeroMQ messages cannot have",
            "another topic",
        )
        for name, zeromq in loaded.named["gateway.zeromq"].items()
        if zeromq.topic in marked and zeromq.is_inbound
    ]


def _without_gateway(loaded: settings_loader.Loaded) -> list[Mistake]:
    """What the gateway's process runs would silently not run without it."""
    if loaded.single["gateway"].is_on:
        return []
    inside = [
        f"{kind}.{name}"
        for kind in ("gateway.zeromq", "gateway.webhook")
        for name in loaded.named[kind]
    ]
    if loaded.single["gateway.statsd"].is_on:
        inside.append("gateway.statsd")
    return [
        Mistake(f"[{name}]", "gateway.listen is off", "an address, such as 127.0.0.1:8081")
        for name in inside
    ]


def _same_names(views: Mapping[str, Any], pipelines: Mapping[str, Any]) -> list[Mistake]:
    """Commands, checkpoints and consumer groups know a view and a pipeline by their names only."""
    return [
        Mistake(f"[view.{name}]", f"[pipeline.{name}] has the same name", "another name")
        for name in views
        if name in pipelines
    ]


def _without_secret(webhooks: Mapping[str, WebhookSettings]) -> list[Mistake]:
    return [
        Mistake(
            f"[gateway.webhook.{name}]",
            "it has no secret, or two",
            "secret_file, or secret: without it anybody could write to the topic",
        )
        for name, webhook in webhooks.items()
        if (webhook.secret is None) == (webhook.secret_file is None)
    ]


def _without_mail(
    alerts: Mapping[str, AlertSettings], sinks: Mapping[str, SinkSettings]
) -> list[Mistake]:
    """mailto: needs a mail server, which a sink names."""
    return [
        Mistake(
            f"[alert.{name}]",
            "mailto: needs a sink of kind email with a `from` option",
            'mail = "SINK"',
        )
        for name, alert in alerts.items()
        if any(place.startswith("mailto:") for place in alert.receivers)
        and not (alert.mail and alert.mail in sinks and sinks[alert.mail].kind == "email")
    ]
