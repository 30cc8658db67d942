"""Watches all alerts, in a thread. Of several gateways one does: a consumer group decides which.

The gateway does it because it runs as long as the project does, has the whole configuration and a
login, and speaks to the world outside already. A value that takes long delays other alerts, never
requests.
"""

import asyncio
import logging
import threading
import time
from typing import Any, Final

import orjson

from headwater.client.reading.compacted import CommittedLatest
from headwater.config import Config
from headwater.errors import HeadwaterError
from headwater.gateway.alerts import notices, store
from headwater.gateway.alerts.measures import Measures
from headwater.gateway.alerts.metrics import FAILED, GIVEN_UP, SENT, AlertMetrics
from headwater.gateway.alerts.rules import AlertState, advanced, place_id
from headwater.gateway.ownership import Ownership
from headwater.gateway.writing.delivery import Delivery
from headwater.inspect.record_json import Record

log = logging.getLogger(__name__)

GROUP: Final = "headwater-alerts"
_EVERY_S: Final = 2.0
_REPORT_MS: Final = 30_000
_STOPPING_LIMIT_S: Final = 10.0
_MAX_RECORD_BYTES: Final = 1 << 20


class AlertService:
    """Started and closed by whoever runs the gateway."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.metrics = AlertMetrics()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="alerts", daemon=True)

    def start(self) -> None:
        if self._config.alerts:
            self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(_STOPPING_LIMIT_S)

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                asyncio.run(_Watch(self._config, self._is_closed, self.metrics).run())
            except HeadwaterError as error:
                log.warning("alerts are not watched: %s", error)
            except Exception:
                log.exception("alerts are not watched")
            self._is_closed.wait(_EVERY_S)


class _Watch:
    def __init__(self, config: Config, is_closed: threading.Event, metrics: AlertMetrics) -> None:
        self._config = config
        self._metrics = metrics
        self._is_closed = is_closed
        self._bootstrap, self._login = config.bootstrap(), config.client
        self._states: dict[str, AlertState] = {}
        self._written: dict[str, tuple[str, int]] = {}
        self._is_owner = False

    async def run(self) -> None:
        await asyncio.to_thread(store.ensure, self._bootstrap, self._login)
        latest = CommittedLatest(self._bootstrap, self._login, store.TOPIC, patience_s=10.0)
        ownership = Ownership(self._bootstrap, self._login, GROUP, store.TOPIC, lambda _: None)
        self._delivery = Delivery(self._bootstrap, self._login, _MAX_RECORD_BYTES)
        self._measures = Measures(self._config)
        try:
            while not self._is_closed.is_set():
                stored = store.decoded(await asyncio.to_thread(latest.read))
                if not ownership.owned:
                    self._is_owner = False
                    self._metrics.states = {}
                else:
                    if not self._is_owner:  # another gateway may have watched meanwhile
                        self._states = dict(stored.states)
                        self._is_owner = True
                        self._metrics.states = self._states
                    for name in self._config.alerts:
                        await self._look(name, stored)
                await asyncio.to_thread(self._is_closed.wait, _EVERY_S)
        finally:
            self._metrics.states = {}
            await asyncio.to_thread(ownership.close)
            self._measures.close()
            self._delivery.close()
            latest.close()

    async def _look(self, name: str, stored: store.Stored) -> None:
        alert = self._config.alerts[name]
        state = self._states.setdefault(name, AlertState())
        now_ms = _now_ms()
        try:
            value = await asyncio.to_thread(self._measures.value, alert.condition)
        except HeadwaterError as error:
            state.error, state.checked_ms = str(error)[:500], now_ms
        else:
            is_silenced = stored.is_silenced(name, now_ms)
            event = advanced(alert, state, value, now_ms, is_silenced=is_silenced)
            if event is not None:  # stored with what is to be notified, before it is
                await self._write(name, state)
                await self._note(event)
        await self._notify(name, state)
        shown = f"{state.state} {state.error} {len(state.undelivered)}"
        old = self._written.get(name)
        if old is None or old[0] != shown or now_ms - old[1] > _REPORT_MS:
            self._written[name] = (shown, now_ms)
            await self._write(name, state)

    async def _notify(self, name: str, state: AlertState) -> None:
        alert = self._config.alerts[name]
        receivers = {place_id(to): to for to in alert.receivers}
        for notice in list(state.undelivered):
            now_ms = _now_ms()
            if notice.next_ms > now_ms:
                continue
            to = receivers.get(notice.to)
            if to is None:  # the configuration no longer names it
                state.undelivered.remove(notice)
                continue
            error = await notices.send(self._config, alert, to, notice.event)
            self._metrics.notices[name, FAILED if error else SENT] += 1
            if error:
                notice.has_failed(error, now_ms)
                log.warning("alert %s: %s: %s", name, to.partition(":")[0], error)
                if not notice.is_hopeless(now_ms):
                    continue
                state.given_up += 1
                self._metrics.notices[name, GIVEN_UP] += 1
                await self._note({**notice.event, "event": "given up", "error": error})
            state.undelivered.remove(notice)

    async def _write(self, name: str, state: AlertState) -> None:
        record = Record(f"alert:{name}".encode(), state.to_json(), (), 0)
        written = await self._delivery.send(store.TOPIC, [record])
        if written.error is not None:
            raise written.error

    async def _note(self, event: dict[str, Any]) -> None:
        record = Record(str(event["alert"]).encode(), orjson.dumps(event), (), 0)
        written = await self._delivery.send(store.HISTORY, [record])
        if written.error is not None:
            raise written.error


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
