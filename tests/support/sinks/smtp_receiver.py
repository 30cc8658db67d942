"""A small SMTP server (RFC 5321) that answers as a test wants."""

import base64
import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from email.message import EmailMessage


@dataclass
class Mail:
    sender: str
    recipients: list[str]
    data: bytes

    @property
    def message(self) -> EmailMessage:
        return message_from_bytes(self.data, policy=policy.default)

    @property
    def text(self) -> str:
        return self.message.get_content().replace("\r\n", "\n").rstrip("\n")


@dataclass
class SmtpReceiver:
    port: int = 0
    mails: list[Mail] = field(default_factory=list)
    logins: list[tuple[str, str]] = field(default_factory=list)
    password: str | None = None  # None: no login
    tls: ssl.SSLContext | None = None  # for STARTTLS
    # What is answered to a recipient, and to a mail (with the number of those before it).
    to: Callable[[str], str] = lambda address: "250 OK"
    mail: Callable[[int, Mail], str] = lambda number, mail: "250 OK"
    sender: str = "250 OK"


@contextmanager
def receiving_mails(tls: ssl.SSLContext | None = None) -> Iterator[SmtpReceiver]:
    """With `tls` all of it is encrypted; STARTTLS is the receiver's own setting."""
    receiver = SmtpReceiver()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError, ssl.SSLError):  # senders are killed
                if tls is not None:
                    self._encrypt(tls)
                self._talk()

        def _encrypt(self, context: ssl.SSLContext) -> None:
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile = self.connection.makefile("rb")
            self.wfile = self.connection.makefile("wb", buffering=0)

        def finish(self) -> None:
            with suppress(OSError):
                self.wfile.close()
            self.rfile.close()
            self.connection.close()

        def _say(self, line: str) -> None:
            self.wfile.write(line.encode() + b"\r\n")

        def _talk(self) -> None:
            self._say("220 receiver")
            sender, recipients, is_in = "", [], receiver.password is None
            while line := self.rfile.readline():
                text = line.decode().strip()
                verb, _, rest = text.partition(" ")
                verb = verb.upper()
                if verb == "EHLO":
                    extensions = ["AUTH PLAIN"] if receiver.password is not None else []
                    if receiver.tls and not isinstance(self.connection, ssl.SSLSocket):
                        extensions = ["STARTTLS"]
                    for extension in ["receiver", *extensions]:
                        self._say(f"250-{extension}")
                    self._say("250 SIZE 1000000")
                elif verb == "STARTTLS":
                    self._say("220 go on")
                    self._encrypt(receiver.tls)
                elif verb == "AUTH":
                    _, user, password = base64.b64decode(rest.split()[1]).decode().split("\0")
                    receiver.logins.append((user, password))
                    is_in = password == receiver.password
                    self._say("235 welcome" if is_in else "535 who are you")
                elif verb == "MAIL":
                    sender, recipients = rest[6:-1].split(">")[0], []
                    self._say(receiver.sender if is_in else "530 log in first")
                elif verb == "RCPT":
                    answer = receiver.to(rest[4:-1])
                    if answer.startswith("2"):
                        recipients.append(rest[4:-1])
                    self._say(answer)
                elif verb == "DATA":
                    self._say("354 go on")
                    if (data := self._data()) is None:
                        return
                    mail = Mail(sender, recipients, data)
                    answer = receiver.mail(len(receiver.mails), mail)
                    receiver.mails.append(mail)
                    self._say(answer)
                elif verb == "QUIT":
                    self._say("221 bye")
                    return
                else:
                    self._say("250 OK")

        def _data(self) -> bytes | None:
            lines = []
            while line := self.rfile.readline():
                if line == b".\r\n":
                    return b"".join(lines)
                lines.append(line.removeprefix(b"."))
            return None

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

        def shutdown_request(self, request: socket.socket) -> None:
            self.close_request(request)

    server = Server(("127.0.0.1", 0), Handler)
    receiver.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
