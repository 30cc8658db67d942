"""TLS of the broker: its certificate, the CAs of client certificates, and their subjects."""

import logging
import os
import re
import ssl
import stat

from headwater.errors import ConfigError

log = logging.getLogger(__name__)

# Java's X500Principal (RFC 2253), and so Kafka, abbreviates these.
_SHORT = {
    "commonName": "CN", "countryName": "C", "localityName": "L", "stateOrProvinceName": "ST",
    "organizationName": "O", "organizationalUnitName": "OU", "streetAddress": "STREET",
    "domainComponent": "DC", "userId": "UID",
}  # fmt: skip


class TlsContext:
    """What new connections get. When a file has changed, the next connection gets the new one;
    files that cannot be used are logged, and the old ones stay in use.
    """

    def __init__(self, cert: str, key: str, client_ca: str | None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._stamp = self._stamp_of_files()
        self._context = self._load()

    def current(self) -> ssl.SSLContext:
        stamp = self._stamp_of_files()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._context = self._load()
                log.info("the certificate was reloaded: %s", self._cert)
            except ConfigError as error:
                log.error("a new certificate cannot be used, the old one stays: %s", error)
        return self._context

    def _stamp_of_files(self) -> tuple[tuple[int, int, int], ...]:
        stamps = []
        for path in (self._cert, self._key, self._client_ca):
            try:
                status = os.stat(path) if path is not None else None
            except OSError:
                status = None
            stamps.append(
                (0, 0, 0) if status is None else (status.st_mtime_ns, status.st_size, status.st_ino)
            )
        return tuple(stamps)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_password)
            if os.stat(self._key).st_mode & stat.S_IROTH:
                log.warning("every user of this machine can read the key %s", self._key)
            if self._client_ca is not None:
                context.load_verify_locations(self._client_ca)
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = ", ".join(filter(None, (self._cert, self._key, self._client_ca)))
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
            raise ConfigError(
                "the files for TLS cannot be used",
                detail=f"{files}: {(reason or str(error)).replace('_', ' ').lower()}",
                hint="broker.tls_cert, tls_key and tls_client_ca name PEM files that belong"
                " together; the key must not be encrypted",
            ) from error
        return context


def _no_password() -> str:
    """OpenSSL would ask at the terminal."""
    raise ValueError("the key is encrypted")


def subject_of(tls: ssl.SSLObject) -> str:
    """The subject of the client's certificate as Kafka writes it (RFC 2253): the last part first,
    CN=orders,OU=shop,O=Example. Empty if the client was not asked for one.

    An attribute that has no short name in Java's list is written with its name (emailAddress=…),
    where Java writes its number and hexadecimal bytes.
    """
    certificate = tls.getpeercert()
    if not certificate:
        return ""
    names: tuple[tuple[tuple[str, str], ...], ...] = certificate["subject"]  # type: ignore[assignment]
    return ",".join(
        "+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in name)
        for name in reversed(names)
    )


def _escaped(value: str) -> str:
    escaped = re.sub(r'[,+"\\<>;]', r"\\\g<0>", value)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(escaped) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped
