"""Fetches images from hosts that the operator allows: in bounded time and size, never from a private address."""

import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Collection, Sequence
from http import HTTPStatus
from urllib.parse import SplitResult, urljoin, urlsplit

from rocmforge.errors import InvalidRequestError

# Seconds that a server may stay silent.
SILENT_SECONDS = 5.0
MAX_REDIRECTS = 3
_CHUNK = 64 << 10
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"Accept": "image/*", "User-Agent": "rocmforge", "Connection": "close"}


def fetch(url: str, hosts: Collection[str], max_bytes: int, deadline: float) -> bytes:
    """Returns the content of a URL.

    Args:
        url: An `http` or `https` URL.
        hosts: Host names that may be asked; `*` is every name. A private address must be among them itself.
        max_bytes: Maximum bytes of the content.
        deadline: When the work has to end, by `time.monotonic`.

    Raises:
        InvalidRequestError: The URL is not allowed, or its content cannot be had within the bounds.
    """
    for _ in range(MAX_REDIRECTS + 1):
        place = _checked(url, hosts)
        try:
            found = _get(place, _addresses(place, hosts), max_bytes, deadline)
        except InvalidRequestError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = "its time is over" if time.monotonic() >= deadline else str(error) or type(error).__name__
            raise InvalidRequestError(
                f"image: {place.hostname} cannot be asked for it ({late}); send its bytes"
            ) from error
        if isinstance(found, bytes):
            return found
        # A host that is allowed must not lend its place to another one.
        url = urljoin(url, found)
        if _checked(url, hosts).hostname != place.hostname:
            raise InvalidRequestError(f"image: {place.hostname} redirects to another host, expected the image itself")
    raise InvalidRequestError(f"image: got more than {MAX_REDIRECTS} redirects, expected the image itself")


def _checked(url: str, hosts: Collection[str]) -> SplitResult:
    """Returns the parts of a URL whose host may be asked."""
    try:
        place = urlsplit(url)
        host, _ = place.hostname or "", place.port
    except ValueError as error:
        raise InvalidRequestError(f"image: got the URL {url[:80]!r}, expected a valid one ({error})") from error
    if place.scheme not in _PORTS or place.username is not None or not (host.isascii() and url.isprintable()):
        raise InvalidRequestError(
            f"image: got the URL {url[:80]!r}, expected a data: URL, or one of https without a user's name"
        )
    if host not in hosts and "*" not in hosts:
        raise InvalidRequestError(
            f"image: got a URL of the host {host[:80]!r}, which this server may not ask; send the image as a data: "
            "URL, or let the operator allow the host (--allowed-image-host)"
        )
    return place


def _addresses(place: SplitResult, hosts: Collection[str]) -> list[str]:
    """Returns the addresses of a host, none of which is private."""
    found = socket.getaddrinfo(place.hostname, _port(place), type=socket.SOCK_STREAM)
    addresses = [str(each[4][0]) for each in found]
    for address in addresses:
        if address not in hosts and not _is_public(address):
            raise InvalidRequestError(
                f"image: got a URL of the host {place.hostname!r}, which has a private address, expected a public one"
            )
    return addresses


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address):
        # These lead to an address of the older kind: mapped, 6to4, Teredo, and NAT64.
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo and ip.teredo[1])
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner:
            return inner.is_global and not inner.is_multicast
    return ip.is_global and not (ip.is_multicast or ip.is_reserved)


def _port(place: SplitResult) -> int:
    return place.port or _PORTS[place.scheme]


class _Connection(http.client.HTTPConnection):
    """A connection to one of the checked addresses: a second look-up of the name could give another one."""

    def __init__(self, place: SplitResult, addresses: Sequence[str], seconds: float) -> None:
        super().__init__(place.hostname or "", _port(place), timeout=min(SILENT_SECONDS, seconds))
        self._addresses = addresses
        self._encrypts = place.scheme == "https"
        self.guard: socket.socket | None = None

    def connect(self) -> None:
        """Connects to the first address that answers."""
        for left in reversed(range(len(self._addresses))):
            try:
                self.sock = socket.create_connection((self._addresses[-1 - left], self.port), self.timeout)
                break
            except OSError:
                if not left:
                    raise
        self.guard = self.sock.dup()
        if self._encrypts:
            self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)

    def cut(self) -> None:
        """Ends the connection, from another thread."""
        if self.guard is not None:
            self.guard.shutdown(socket.SHUT_RDWR)


def _get(place: SplitResult, addresses: Sequence[str], max_bytes: int, deadline: float) -> bytes | str:
    """Returns the content, or the place to which the host redirects."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection = _Connection(place, addresses, left)
    # A host that sends a byte at a time is never silent.
    watch = threading.Timer(left, connection.cut)
    watch.daemon = True
    watch.start()
    try:
        target = (place.path or "/") + (f"?{place.query}" if place.query else "")
        connection.request("GET", target, headers=_HEADERS)
        answer = connection.getresponse()
        location = answer.getheader("Location")
        if answer.status in (301, 302, 303, 307, 308) and location:
            return location
        if answer.status != HTTPStatus.OK:
            raise OSError(f"it answers with the status {answer.status}")
        content = bytearray()
        while piece := answer.read(_CHUNK):
            content += piece
            if len(content) > max_bytes:
                raise OSError(f"it sends more than {max_bytes} bytes")
        if answer.length:
            raise OSError("it sends less than it says")
        if time.monotonic() >= deadline:
            raise TimeoutError
        return bytes(content)
    finally:
        watch.cancel()
        connection.close()
        if connection.guard is not None:
            connection.guard.close()
