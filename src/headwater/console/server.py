"""The console's process: binds its address and serves until it is asked to stop."""

from collections.abc import Callable

from headwater.config import Config
from headwater.console.web import rendering
from headwater.console.web.app import create
from headwater.errors import HeadwaterError, UsageError
from headwater.web import serving
from headwater.web.serving import Server, http_config


def run(config: Config, ready: Callable[[str], None]) -> None:
    """Serves until SIGINT or SIGTERM; `ready` gets the address once it accepts connections.
    Raises ConfigError and HeadwaterError if it cannot serve.
    """
    settings = config.console
    if not settings.is_on:
        raise UsageError("console.listen is off", hint="--listen 127.0.0.1:8080 serves it")
    check_assets()
    app = create(config)
    console = app.state.console
    serving.check_tls("console", settings)
    check_network(config, needs_sign_in=console.needs_sign_in)

    def stopping() -> None:
        console.is_stopping = True

    server = Server(http_config(app, settings), console.start, stopping)
    try:
        serving.serve("console", settings, server, console.listening_on, ready)
    finally:
        console.close()


def check_assets() -> None:
    missing = rendering.missing_assets()
    if missing:
        raise HeadwaterError(
            "the console lacks files that its pages load",
            detail=f"not in {rendering.VENDOR}: {', '.join(missing)}",
            hint="`make run` fetches them (tools/install_console_assets.sh); a wheel has them",
        )


def check_network(config: Config, *, needs_sign_in: bool) -> None:
    """Raises ConfigError if a network could read and change everything."""
    serving.check_network(
        "console",
        config.console,
        needs_sign_in=needs_sign_in,
        reason="any client there could read and change everything: the broker has no users",
        hint='broker.authentication = "sasl" (docs/security.md), or listen on 127.0.0.1',
    )
