"""Requests that the server itself sends, such as an alert's webhook, to addresses that somebody typed in.

Such a server stands inside a cluster, beside metadata services and other people's ports. So a name is resolved once,
every address it has must be public (or allowed), and the connection goes to just the address that was looked at: a name
that says something else a moment later (DNS rebinding) is not asked again. No redirect is followed, no proxy of the
environment is used, and nothing of the answer is given back but its status.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

import msgspec

TIMEOUT_S = 10.0  # of the whole exchange, however slowly the other side speaks
MAX_URL = 2_048
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What `is_global` of some Python takes for public: its tables were corrected over the years (CVE-2024-4032), and clouds
# have services at numbers of their own (168.63.129.16: Azure's WireServer; 192.0.0.192: Oracle's metadata).
NOT_PUBLIC = tuple(
    ipaddress.ip_network(each)
    for each in (
        "100.64.0.0/10", "168.63.129.16/32", "192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23",
        "2001:db8::/32", "3fff::/20",
    )
)  # fmt: skip
# All of IPv6 that was ever given out. The rest has odd corners that `is_global` takes for public: ::ffff:0:7f00:1 is
# 127.0.0.1 to a translator, and in a network's own NAT64 prefix, 64:ff9b:1::/48, the IPv4 address may be anywhere.
GIVEN_OUT = ipaddress.IPv6Network("2000::/3")
# IPv6 that stands for the IPv4 address in its last bits, which the network's own translators would reach.
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class SafeHttpError(Exception):
    """Why nothing was sent, or no answer came; one line, which holds nothing of an answer."""


class Target(msgspec.Struct, frozen=True):
    """A URL, taken apart. `path` holds the query too."""

    scheme: str
    host: str
    port: int
    path: str


def parse(url: str) -> Target:
    """What may be typed in, before anything is resolved. Raises `SafeHttpError`."""
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url or "\\" in url:
        raise SafeHttpError(f"the URL must be printable ASCII without spaces, of at most {MAX_URL} characters")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise SafeHttpError("the URL cannot be read") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SafeHttpError("the URL must begin with http:// or https:// and a host")
    if parts.username is not None or parts.password is not None:
        raise SafeHttpError("the URL must not hold a user or password")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80), path)


def post(url: str, body: bytes, headers: Mapping[str, str], allowed: Sequence[Network] = ()) -> int:
    """Send `body`; the status of the answer, also of a redirect. Raises `SafeHttpError`.

    `allowed`: networks that may be reached though they are not public.
    """
    target = parse(url)
    address = resolve(target, allowed)
    try:
        return _exchange(target, address, body, headers)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SafeHttpError(f"{target.host} did not answer: {_reason(error)}") from None


def resolve(target: Target, allowed: Sequence[Network] = ()) -> Address:
    """The one address to connect to. Raises `SafeHttpError` when any that the name has may not be reached."""
    try:
        entries = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise SafeHttpError(f"{target.host} has no address") from None
    addresses = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in entries]
    for address in addresses:
        if not may_reach(address, allowed):
            raise SafeHttpError(f"{target.host} is {address}, which is not public; the server's operator may allow it")
    if not addresses:
        raise SafeHttpError(f"{target.host} has no address")
    return addresses[0]


def may_reach(address: Address, allowed: Sequence[Network] = ()) -> bool:
    """Whether it is public, or allowed."""
    if any(address in network for network in allowed):
        return True
    inner = _embedded(address)
    if inner is not None:
        return may_reach(inner, allowed)
    if isinstance(address, ipaddress.IPv6Address) and address not in GIVEN_OUT:
        return False
    return address.is_global and not address.is_multicast and not any(address in each for each in NOT_PUBLIC)


def _embedded(address: Address) -> Address | None:
    """The IPv4 address that an IPv6 one stands for: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.teredo is not None:
        return address.teredo[1]
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour


def _exchange(target: Target, address: Address, body: bytes, headers: Mapping[str, str]) -> int:
    plain = _connect(target, address)
    # A second handle: TLS takes the first one over, and to hang up on that would do nothing.
    with plain, plain.dup() as handle:
        ends = threading.Timer(TIMEOUT_S, _hang_up, (handle,))
        ends.daemon = True
        ends.start()
        connection = http.client.HTTPConnection(target.host, target.port, timeout=TIMEOUT_S)
        is_usual = target.port == (443 if target.scheme == "https" else 80)
        name = f"[{target.host}]" if ":" in target.host else target.host
        host = name if is_usual else f"{name}:{target.port}"
        try:
            # The certificate must be the name's, whatever address it has.
            context = ssl.create_default_context() if target.scheme == "https" else None
            connection.sock = plain if context is None else context.wrap_socket(plain, server_hostname=target.host)
            connection.request("POST", target.path, body, {**headers, "Host": host, "Connection": "close"})
            return connection.getresponse().status
        finally:
            connection.close()
            ends.cancel()
            ends.join()  # or it might hang up on somebody else's, with this handle's number


def _connect(target: Target, address: Address) -> socket.socket:
    return socket.create_connection((str(address), target.port), TIMEOUT_S)


def _hang_up(plain: socket.socket) -> None:
    try:
        plain.shutdown(socket.SHUT_RDWR)
    except OSError:  # it has ended by itself
        return


def _reason(error: Exception) -> str:
    """Never the other side's words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "its certificate is not trusted"
    if isinstance(error, http.client.HTTPException):
        return "not HTTP"
    return getattr(error, "strerror", None) or type(error).__name__
