"""Sockets of multicast groups, IPv4. By default nothing leaves the machine."""

import ipaddress
import socket
import struct
from typing import Final

from headwater.errors import HeadwaterError, UsageError
from headwater.settings import split_address

Address = tuple[str, int]
LOOPBACK: Final = "127.0.0.1"
_RECEIVE_BUFFER_BYTES: Final = 8 << 20  # the kernel gives as much as net.core.rmem_max allows


def parse_group(text: str) -> Address:
    """GROUP:PORT. Raises UsageError."""
    hint = "an IPv4 group and a port, for example 239.1.2.3:5000"
    try:
        host, port = split_address(text)
        group = ipaddress.ip_address(host)
    except ValueError as error:
        raise UsageError(f"{text} is no multicast group", hint=hint) from error
    if group.version != 4 or not group.is_multicast or not port:
        raise UsageError(f"{text} is no multicast group", hint=hint)
    return host, port


def sending_socket(interface: str, ttl: int) -> socket.socket:
    """For packets to the group, and for requests to us."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, ttl)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind((interface, 0))
    except OSError as error:
        opened.close()
        raise _unusable(interface, error) from error
    return opened


def receiving_socket(group: Address, interface: str) -> socket.socket:
    """A member of the group. Several receivers of a machine get each packet."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        opened.bind(group)
        membership = struct.pack("4s4s", socket.inet_aton(group[0]), socket.inet_aton(interface))
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
    except OSError as error:
        opened.close()
        raise _unusable(interface, error) from error
    return opened


def check_interface(text: str) -> str:
    """Raises UsageError unless it is an IPv4 address."""
    try:
        socket.inet_pton(socket.AF_INET, text)
    except OSError as error:
        raise UsageError(
            f"{text} is no IPv4 address of this machine", hint="--interface 192.0.2.7"
        ) from error
    return text


def _unusable(interface: str, error: OSError) -> HeadwaterError:
    return HeadwaterError(
        f"multicast does not work at {interface}",
        detail=(error.strerror or str(error)).lower(),
        hint="--interface has to be an IPv4 address of this machine; `ip addr` lists them",
    )
