"""Authentication of clients: [client] and -X as librdkafka's properties, and for our own socket.

A password is never an argument of a command, which every user of the machine could read: it comes
from the environment, from a file, or is asked for at the terminal.
"""

import base64
import dataclasses
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headwater.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ConfigError,
    MalformedMessage,
    RequestRefused,
)
from headwater.protocol import scram
from headwater.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from headwater.protocol.messages.sasl_handshake import (
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from headwater.settings import ClientSettings, Secret, split_address

TOKEN_LIFETIME_S = 300  # assumed of a token that does not say it
# Asks a question on a connection: (request, response's type, version) to response.
Exchange = Callable[[Any, Any, int], Any]


def properties_of(settings: ClientSettings) -> dict[str, Any]:
    """The properties of librdkafka for the [client] section; none if it says nothing."""
    uses_sasl = settings.username is not None or settings.token_file is not None
    uses_tls = settings.tls or settings.tls_ca is not None or settings.tls_cert is not None
    if not uses_sasl and not uses_tls:
        return {}
    properties: dict[str, Any] = {}
    if uses_tls:
        properties |= {
            "ssl.ca.location": settings.tls_ca,
            "ssl.certificate.location": settings.tls_cert,
            "ssl.key.location": settings.tls_key,
        }
    if settings.token_file is not None:
        path = settings.token_file
        properties |= {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: _token(path)}
    elif settings.username is not None:
        properties |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.username,
            "sasl.password": _password(settings),
        }
    protocol = f"{'sasl_' if uses_sasl else ''}{'ssl' if uses_tls else 'plaintext'}"
    properties["security.protocol"] = protocol
    return {name: value for name, value in properties.items() if value is not None}


def with_password(settings: ClientSettings) -> ClientSettings:
    """For a process that logs in many times: asks once for a password that is not configured."""
    has_password = settings.password is not None or settings.password_file is not None
    if settings.username is None or settings.token_file is not None or has_password:
        return settings
    return dataclasses.replace(settings, password=Secret(_password(settings)))


def _password(settings: ClientSettings) -> str:
    if settings.password is not None:
        return settings.password.reveal()
    if settings.password_file is not None:
        return read_secret(settings.password_file, "client.password_file")
    if sys.stdin.isatty():
        import getpass

        return getpass.getpass(f"password of {settings.username}: ")
    raise ConfigError(
        f"there is no password for {settings.username}",
        hint="HEADWATER_CLIENT__PASSWORD or client.password_file has it; at a terminal it is"
        " asked for",
    )


def read_secret(path: str, setting: str) -> str:
    """The file's text without the line's end."""
    try:
        secret = Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "no UTF-8"
        raise ConfigError(f"{setting} cannot be read", detail=f"{path}: {reason}") from error
    if not secret:
        raise ConfigError(f"{setting} is empty", detail=path)
    return secret


def _token(path: str) -> tuple[str, float]:
    """The token and when it ends, for librdkafka."""
    import json

    token = read_secret(path, "client.token_file")
    try:
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return token, float(claims["exp"])
    except (IndexError, KeyError, ValueError, TypeError):
        return token, time.time() + TOKEN_LIFETIME_S


def is_encrypted(properties: Mapping[str, Any]) -> bool:
    return str(properties.get("security.protocol", "")).lower().endswith("ssl")


def uses_sasl(properties: Mapping[str, Any]) -> bool:
    return str(properties.get("security.protocol", "")).lower().startswith("sasl_")


def encrypted(
    connection: socket.socket, address: str, properties: Mapping[str, Any]
) -> socket.socket:
    """TLS over a connection; RequestRefused if we do not believe the broker."""
    files = ("ssl.ca.location", "ssl.certificate.location", "ssl.key.location")
    try:
        for file in files:
            if file in properties:
                open(properties[file], "rb").close()  # whose error names the file, unlike ssl's
        context = ssl.create_default_context(cafile=properties.get("ssl.ca.location"))
        if properties.get("ssl.endpoint.identification.algorithm") == "none":
            context.check_hostname = False
        certificate = properties.get("ssl.certificate.location")
        if certificate is not None:
            context.load_cert_chain(certificate, properties.get("ssl.key.location"))
    except OSError as error:
        raise ConfigError(
            "the files for TLS cannot be used",
            detail=f"{error.filename}: {(error.strerror or '').lower()}"
            if error.filename
            else error.strerror or str(error),
            hint="client.tls_ca, tls_cert and tls_key name PEM files",
        ) from error
    try:
        return context.wrap_socket(connection, server_hostname=split_address(address)[0])
    except ssl.SSLCertVerificationError as error:
        raise RequestRefused(
            f"the certificate of {address} is not to be trusted",
            detail=error.verify_message,
            hint="client.tls_ca names the CA that signed it; the address must be one it is for",
        ) from error
    except ssl.SSLError as error:
        raise no_tls(address, error) from error


def no_tls(address: str, error: ssl.SSLError) -> RequestRefused:
    """Also for the first read: with TLS 1.3 a missing certificate shows behind the handshake."""
    return RequestRefused(
        f"no TLS with {address}",
        detail=(error.reason or str(error)).replace("_", " ").lower(),
        hint="does the broker speak TLS there, and does it want a certificate (client.tls_cert)?",
    )


def log_in(ask: Exchange, properties: Mapping[str, Any]) -> None:
    """SASL; RequestRefused if the broker does not believe us."""
    mechanism = properties.get("sasl.mechanism") or properties.get("sasl.mechanisms", "")
    name, password = (str(properties.get(f"sasl.{key}", "")) for key in ("username", "password"))
    offered = ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse, 1)
    if offered.error_code:
        raise RequestRefused(
            f"the broker does not offer {mechanism}",
            detail="it offers " + (", ".join(offered.mechanisms) or "no SASL at all"),
            hint="client.sasl_mechanism chooses another",
        )

    def say(message: bytes) -> bytes:
        request = SaslAuthenticateRequest(auth_bytes=message)
        answer = ask(request, SaslAuthenticateResponse, 1)
        if answer.error_code:
            raise RequestRefused(
                f"the broker refuses the login{f' of {name}' if name else ''}",
                detail=answer.error_message or "",
                hint="is the password (or token) right, and does the user exist there?",
            )
        return bytes(answer.auth_bytes)

    try:
        if mechanism == "PLAIN":
            say(f"\0{name}\0{password}".encode())
        elif mechanism == "OAUTHBEARER" and "oauth_cb" in properties:
            token, _ = properties["oauth_cb"]("")
            if say(f"n,,\x01auth=Bearer {token}\x01\x01".encode()):
                say(b"\x01")
        elif mechanism in scram.DIGESTS:
            exchange = scram.ClientExchange(mechanism, name, password)
            exchange.check(say(exchange.client_final(say(exchange.client_first()))))
        else:
            raise BrokerUnreachable(f"there is no logging in with {mechanism}")
    except (AuthenticationFailed, MalformedMessage) as error:
        raise RequestRefused(
            "the broker does not log in as it should", detail=str(error)
        ) from error
