"""E-mail: a mail for each row, by SMTP.

At least once (delivery.py). Message-ID is derived from the idempotency key, which identifies a
repetition: many mail stores show it once.

`to`, `subject` and `body` are templates: {column} is the row's value, {{ and }} are braces. What a
row holds never becomes a header, or another recipient: each address in `to` stays one address, and
line ends in a subject become blanks. Rows that were deleted send no mail.

    4xx, no answer     retried
    5xx to a recipient or to the mail     the row is wrong: RowRefused
    5xx to the sender, wrong password     StoreRefused
"""

import re
import smtplib
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.errors import MessageError
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import ConfigError, RowRefused, StoreRefused, StoreUnreachable
from headwater.sinks.contract import DELETE, OP, TRUNCATE, Log, Target
from headwater.sinks.notifications.delivery import (
    DeliveryStore,
    Message,
    Sender,
    TryAgain,
    number_of,
    password_of,
    refuse_clear_credentials,
    split_address,
    tls_context,
    untrusted,
)
from headwater.sinks.settings import SinkSettings

OPTIONS: Final = ("from", "mails_per_minute", "timeout_s", "tls_ca")
TARGET_OPTIONS: Final = ("from", "to", "subject", "body")

_SCHEMES: Final = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
_ADDRESS: Final = re.compile(r"[^\s@<>(),;:\"\[\]\\]+@[^\s@<>(),;:\"\[\]\\]+")


class EmailStore(DeliveryStore):
    kind = "email"

    def __init__(self, settings: SinkSettings, target: Target, log: Log) -> None:
        super().__init__(settings, target, log)
        _Mailer(settings, target)  # raises at once if the settings are wrong

    def check(self) -> None:
        """Connects and logs in, and sends nothing."""
        super().check()
        mailer = _Mailer(self.settings, self.target)
        try:
            mailer.connect()
        except TryAgain as error:
            raise StoreUnreachable("the mail server does not answer", detail=str(error)) from error
        finally:
            mailer.close()

    def sender(self, fields: pa.Schema | None) -> Sender:
        mailer = _Mailer(self.settings, self.target)
        if fields is not None:
            mailer.check_columns([*fields.names, OP])
        return mailer


class Template:
    """A text with {column} in it."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self._parts = re.split(r"\{\{|\}\}|\{([^{}]+)\}", text)
        self._braces = re.findall(r"\{\{|\}\}|\{[^{}]+\}", text)
        # re.split gives None for a brace; the text around them has to have none.
        if any("{" in part or "}" in part for part in self._parts[::2]):
            raise ConfigError(f"{name}: a brace without its other", hint="{{ and }} stand for one")
        self.columns = [part for part in self._parts[1::2] if part is not None]

    def filled(self, row: Mapping[str, Any]) -> str:
        """With the row's values; null is empty."""
        out = [self._parts[0]]
        for brace, column, text in zip(
            self._braces, self._parts[1::2], self._parts[2::2], strict=True
        ):
            value = brace[0] if column is None else row.get(column)
            out += ["" if value is None else str(value), text]
        return "".join(out)


@dataclass(frozen=True, slots=True)
class _Recipient:
    """`{name} <{address}>` or `{address}`."""

    name: Template | None
    address: Template

    @classmethod
    def of(cls, option: str, text: str) -> "_Recipient":
        match = re.fullmatch(r"(.*)<(.*)>", text.strip())
        if match is None:
            return cls(None, Template(option, text.strip()))
        return cls(Template(option, match[1].strip()), Template(option, match[2].strip()))

    def columns(self) -> list[str]:
        return [*(self.name.columns if self.name else ()), *self.address.columns]

    def filled(self, row: Mapping[str, Any]) -> Address:
        """ValueError if it is not exactly one address."""
        address = self.address.filled(row).strip()
        if not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is no address")
        local, _, domain = address.rpartition("@")
        name = _one_line(self.name.filled(row)) if self.name else ""
        return Address(name, local, domain)


class _Mailer(Sender):
    def __init__(self, settings: SinkSettings, target: Target) -> None:
        url = split_address(
            f"sink {settings.name}",
            settings.url.reveal() if settings.url is not None else "",
            _SCHEMES,
            'url = "smtps://user@host" or "smtp+starttls://…", "smtp://…" is a mail server',
        )
        assert url.hostname is not None
        options = {**settings.options, **target.options}
        for name in ("from", "to", "subject"):
            if not options.get(name):
                raise ConfigError(
                    f"{target.owner} writes mails to {settings.name}, but {name} is not set"
                )
        self._scheme, self._host = url.scheme, url.hostname
        self._port = url.port or _SCHEMES[url.scheme]
        self.address = f"{self._host}:{self._port}"
        self._user = None if url.username is None else unquote(url.username)
        self._password = password_of(settings, url.password)
        if self._user is not None and url.scheme == "smtp":
            refuse_clear_credentials(
                f"sink {settings.name}", self._host, "smtps:// or smtp+starttls:// encrypt it"
            )
        self._timeout_s = number_of(options, "timeout_s", "30", 0.001)
        per_minute = number_of(options, "mails_per_minute", "0")
        self._pause_s = 60 / per_minute if per_minute else 0.0
        self._next_s = 0.0  # when the next mail may be sent
        self._tls = tls_context(options.get("tls_ca"))
        try:
            self._from = _Recipient.of("from", options["from"]).filled({})
        except (ValueError, MessageError) as error:
            raise ConfigError(f"from: {error}") from error
        self._to = [_Recipient.of("to", recipient) for recipient in options["to"].split(",")]
        self._subject = Template("subject", options["subject"])
        self._body = Template("body", options.get("body", ""))
        self._smtp: smtplib.SMTP | None = None

    def check_columns(self, names: list[str]) -> None:
        used = [column for recipient in self._to for column in recipient.columns()]
        for column in [*used, *self._subject.columns, *self._body.columns]:
            if column not in names:
                raise ConfigError(
                    f"the template of a mail has {{{column}}}, and there is no such column",
                    hint=f"there are {', '.join(names)}",
                )

    def wanted(self, rows: pa.Table) -> pa.Table:
        if OP not in rows.column_names:
            return rows
        deleted = pc.is_in(rows[OP], pa.array([DELETE, TRUNCATE], rows[OP].type))
        return rows.filter(pc.invert(deleted))

    def send(self, message: Message) -> list[RowRefused]:
        [row] = message.rows.to_pylist()
        try:
            recipients = [recipient.filled(row) for recipient in self._to]
            mail = self._mail(message.key, recipients, row)
        except (ValueError, MessageError) as error:
            columns = [column for recipient in self._to for column in recipient.columns()]
            return [
                RowRefused(
                    "a mail cannot be made of a row",
                    row=row,
                    column=columns[0] if len(columns) == 1 else "",
                    detail=str(error),
                )
            ]
        time.sleep(max(0.0, self._next_s - time.monotonic()))
        self._next_s = time.monotonic() + self._pause_s
        return self._deliver(mail, [recipient.addr_spec for recipient in recipients], row)

    def connect(self) -> smtplib.SMTP:
        if self._smtp is not None:
            return self._smtp
        try:
            if self._scheme == "smtps":
                smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                    self._host, self._port, timeout=self._timeout_s, context=self._tls
                )
            else:
                smtp = smtplib.SMTP(self._host, self._port, timeout=self._timeout_s)
        except ssl.SSLCertVerificationError as error:
            raise untrusted(self.address, error) from error
        except (OSError, smtplib.SMTPException) as error:
            raise self._later(error) from error
        self._smtp = smtp
        try:
            if self._scheme == "smtp+starttls":
                smtp.starttls(context=self._tls)
            if self._user is not None:
                smtp.login(self._user, self._password)
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise untrusted(self.address, error) from error
        except smtplib.SMTPNotSupportedError as error:
            self.close()
            raise StoreRefused(f"{self.address} cannot do it", detail=str(error)) from error
        except smtplib.SMTPAuthenticationError as error:
            self.close()
            if error.smtp_code < 500:
                raise self._later(error) from error
            raise StoreRefused(
                f"{self.address} does not let {self._user} in",
                detail=_reply(error.smtp_code, error.smtp_error),
                hint="user and password come from url, the password also from password_file",
            ) from error
        except UnicodeEncodeError:
            self.close()
            raise StoreRefused(
                f"user or password for {self.address} is not ASCII, and SMTP has no other"
            ) from None
        except (OSError, smtplib.SMTPException) as error:
            self.close()
            raise self._later(error) from error
        return smtp

    def close(self) -> None:
        smtp, self._smtp = self._smtp, None
        if smtp is None:
            return
        try:
            smtp.quit()
        except (OSError, smtplib.SMTPException):
            smtp.close()

    def _mail(self, key: str, to: list[Address], row: Mapping[str, Any]) -> EmailMessage:
        mail = EmailMessage()
        mail["Message-ID"] = f"<{key}@{self._from.domain}>"
        mail["Date"] = formatdate(localtime=False)
        mail["From"] = self._from
        mail["To"] = to
        mail["Subject"] = _one_line(self._subject.filled(row))
        mail["Auto-Submitted"] = "auto-generated"
        # Servers need not accept more than ASCII, nor long lines.
        mail.set_content(self._body.filled(row), cte="quoted-printable")
        return mail

    def _deliver(
        self, mail: EmailMessage, to: list[str], row: Mapping[str, Any]
    ) -> list[RowRefused]:
        """Refused for all recipients: retried. Refused for some: reported, and not retried."""
        smtp = self.connect()
        try:
            refused = smtp.send_message(mail, self._from.addr_spec, to)
        except smtplib.SMTPRecipientsRefused as error:
            refused = error.recipients
            if any(code < 500 for code, _ in refused.values()):
                raise TryAgain(f"{self.address}: {_first(refused)}") from error
        except smtplib.SMTPSenderRefused as error:
            if error.smtp_code < 500:
                self.close()
                raise self._later(error) from error
            raise StoreRefused(
                f"{self.address} does not take mails from {self._from.addr_spec}",
                detail=_reply(error.smtp_code, error.smtp_error),
            ) from error
        except smtplib.SMTPDataError as error:
            if error.smtp_code < 500:
                raise self._later(error) from error
            return [self._refused(row, _reply(error.smtp_code, error.smtp_error))]
        except smtplib.SMTPNotSupportedError as error:  # an address that is not ASCII
            return [self._refused(row, str(error))]
        except (OSError, smtplib.SMTPException) as error:
            self.close()
            raise self._later(error) from error
        # Some recipients have it: also those with a transient error are reported here, as a retry
        # would go to all.
        return [self._refused(row, _first(refused))] if refused else []

    def _refused(self, row: Mapping[str, Any], detail: str) -> RowRefused:
        return RowRefused(f"{self.address} refuses the mail for a row", row=row, detail=detail)

    def _later(self, error: Exception) -> TryAgain:
        if isinstance(error, smtplib.SMTPResponseException):
            return TryAgain(f"{self.address}: {_reply(error.smtp_code, error.smtp_error)}")
        return TryAgain(f"{self.address}: {type(error).__name__}: {error}")


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _reply(code: int, answer: bytes | str) -> str:
    text = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
    return f"{code} {_one_line(text)}"


def _first(refused: Mapping[str, tuple[int, bytes]]) -> str:
    [(address, (code, answer)), *_] = refused.items()
    return f"{address}: {_reply(code, answer)}"
