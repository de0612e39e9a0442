"""Which addresses messages may go to: those of the public internet, unless the pipeline says otherwise.

A name is resolved once for each connection, and the connection is made to the very address that was looked at. So
neither a name that points inwards, nor one that answers differently the second time, nor an odd spelling of an address
leads to a machine that only we can reach.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

from tailrace.core.errors import Misconfigured, Unreachable

_NOT_PUBLIC = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
            "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
            "168.63.129.16/32",
        ),
    )
)  # fmt: skip
"""What IANA sets apart, and a service of cloud machines for themselves at an address that only looks public. Written
out here, for Python's own list differs between releases."""
_UNICAST = ipaddress.IPv6Network("2000::/3")
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")


def is_public(address: str) -> bool:
    """Say whether `address`, as a resolver gives it, is one that anybody can reach."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or (_last_four(ip) if ip in _TRANSLATED else None)
        if inner is None and ip not in _UNICAST:
            return False
        ip = inner or ip
    return not any(ip in network for network in _NOT_PUBLIC)


def _last_four(ip: ipaddress.IPv6Address) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(ip.packed[-4:])


def resolve(host: str, port: int, *, allow_private: bool) -> Sequence[tuple[int, Any]]:
    """Return where `host` is, as families and socket addresses; Misconfigured if none of them may be used."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable("webhook-unavailable", f'the name "{host}" of the receiver could not be resolved') from error
    usable = [(family, where) for family, _, _, _, where in found if allow_private or is_public(str(where[0]))]
    if not usable:
        raise Misconfigured(
            "webhook-address",
            f'the receiver "{host}" is at {found[0][4][0]}, which is not an address of the public internet',
            "Nothing was sent to it. If the receiver is one of your own network, set allow_private to true.",
        )
    return usable
