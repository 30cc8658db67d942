"""Readiness checks of each kind of child: a function returns why it is not ready, or None.

They ask over a socket or read a file, and may block for some seconds: called in threads.
"""

import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from headwater.client import broker_request, login
from headwater.config import Config
from headwater.errors import HeadwaterError, RequestRefused
from headwater.pipelines.running import status
from headwater.supervisor.plan import BROKER, CAPTURE, CONSOLE, GATEWAY, ChildPlan

_TIMEOUT_S: Final = 3.0


def not_ready_because(
    plan: ChildPlan, config: Config, announced: Mapping[str, Any] | None
) -> str | None:
    """`announced` is what the child has said of itself; None if it has not yet."""
    if announced is None:
        return "it is starting"
    if plan.kind == BROKER:
        return _broker(config, announced["listen"])
    if plan.kind == CAPTURE:
        return _http(announced["metrics_listen"])
    if plan.kind == CONSOLE:
        return _http(announced["listen"], is_tls=config.console.tls_cert is not None)
    if plan.kind == GATEWAY:
        return _http(announced["listen"], is_tls=config.gateway.tls_cert is not None)
    return _pipelines(config.state_dir(), plan.pipelines)


def address_of(plan: ChildPlan, config: Config, announced: Mapping[str, Any]) -> str | None:
    """Where others reach it."""
    if plan.kind == BROKER:
        return config.broker.reached_at(announced["listen"])
    address = announced.get("metrics_listen" if plan.kind == CAPTURE else "listen")
    return None if address is None else str(address)


def _broker(config: Config, listen: str) -> str | None:
    """A broker that refuses our login is ready, too: children that cannot log in say why."""
    address = config.broker.reached_at(listen)
    try:
        broker_request.supported_versions(address, _TIMEOUT_S, login.properties_of(config.client))
    except RequestRefused:
        return None
    except HeadwaterError as error:
        return str(error)
    return None


def _http(address: str, *, is_tls: bool = False) -> str | None:
    scheme = "https" if is_tls else "http"
    try:
        with _opener(is_tls=is_tls).open(f"{scheme}://{address}/ready", timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(1000).decode("utf-8", "replace")
        return said.strip().removeprefix("not ready: ")
    except (OSError, ValueError) as error:
        return f"{address} does not answer: {error}"


def _opener(*, is_tls: bool) -> urllib.request.OpenerDirector:
    """Never by way of a proxy that the environment names. Of a child of ours the certificate need
    not be checked: it is for names, and this is an address.
    """
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if is_tls:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)


def _pipelines(state_dir: Path, names: tuple[str, ...]) -> str | None:
    """One that waits (for another version of itself, say) is at work."""
    for name in names:
        reported = status.read(state_dir, name)
        if not reported.is_running:
            return f"{name} is starting"
        for write in reported.writes.values():
            if write.get("state") not in ("running", "waiting"):
                return f"{name}: {write.get('error') or write.get('state')}"
    return None
