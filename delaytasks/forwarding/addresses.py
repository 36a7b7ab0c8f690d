"""Resolve the host of a URL, and refuse it if one of its addresses is not public."""

import ipaddress
import queue
import socket
import threading
from collections.abc import Sequence
from typing import Any

from .targets import TargetDown

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
# Networks whose addresses can lead to private hosts, although Python 3.11's is_global is True for them. So is it for
# reserved addresses, such as "::7f00:1" and "::ffff:0:7f00:1", which contain the address 127.0.0.1.
NOT_PUBLIC: Sequence[Network] = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "5f00::/16", "fec0::/10"),
    )
)


class NotPublic(TargetDown):
    """The host has an address that is neither public nor in an allowed network."""


def resolve(host: str, port: int, *, allowed: Sequence[Network], timeout_seconds: float) -> list[str]:
    """Return the IP addresses of a host, after checking that each of them may be called.

    allowed   networks that may be called although they are not public

    Raises TargetDown if the name cannot be resolved in time, NotPublic if one of its addresses is refused.
    """
    addresses = [info[4][0] for info in _look_up(host, port, timeout_seconds)]
    for text in addresses:
        if not is_allowed(text, allowed):
            raise NotPublic(f"{host} is {text}, an address that is not public; see allow_networks.")
    return list(dict.fromkeys(addresses))


def is_allowed(text: str, allowed: Sequence[Network]) -> bool:
    address = _unmapped(ipaddress.ip_address(text.partition("%")[0]))
    if any(address.version == network.version and address in network for network in allowed):
        return True
    inside = any(address.version == network.version and address in network for network in NOT_PUBLIC)
    return address.is_global and not address.is_multicast and not address.is_reserved and not inside


def _unmapped(address: Address) -> Address:
    """Return the IPv4 address of an IPv4-mapped IPv6 address; any other address as it is."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _look_up(host: str, port: int, timeout_seconds: float) -> Any:
    """Call getaddrinfo(), which has no timeout, in a thread of its own."""
    results: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            results.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            results.put(error)

    threading.Thread(target=look_up, daemon=True, name="delaytasks-resolve").start()
    try:
        result = results.get(timeout=timeout_seconds)
    except queue.Empty:
        raise TargetDown(f"{host} was not resolved within {timeout_seconds:g} s.") from None
    if isinstance(result, Exception):
        raise TargetDown(f"{host} cannot be resolved: {result}.")
    return result
