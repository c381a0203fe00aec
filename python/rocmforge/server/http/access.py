"""Access control: keys of clients and admin keys, and without keys the server's host names."""

import hashlib
import hmac
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from rocmforge.hub import is_name
from rocmforge.server.answers.generation import ANONYMOUS, Client
from rocmforge.server.errors import ApiError


class Keys:
    """The accepted keys; without keys, every client may do everything.

    Args:
        clients: The keys of clients.
        operators: Admin keys, which may also use paths that concern all clients.
    """

    def __init__(self, clients: Sequence[str], operators: Sequence[str]) -> None:
        self._digests = [(_digest(key), False) for key in clients] + [(_digest(key), True) for key in operators]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def client(self, headers: Headers) -> Client:
        """Returns the client.

        Raises:
            ApiError: The key is missing, or not known.
        """
        if not self._digests:
            return ANONYMOUS
        scheme, _, token = headers.get("authorization", "").partition(" ")
        key = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        digest = _digest(key)
        # Every key is compared in full, so that the time reveals nothing about them.
        known = [(hmac.compare_digest(digest, other), is_operator) for other, is_operator in self._digests]
        if not any(same for same, _ in known):
            got = "a key that is not known" if key else "no key"
            raise ApiError(
                401,
                f"API key: got {got}, expected `Authorization: Bearer KEY` (or `x-api-key: KEY`)",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        name = digest.hex()
        return Client(name[:8], name, is_operator=any(same and is_operator for same, is_operator in known))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def check_operator(client: Client) -> None:
    """Refuses a path that concerns all clients to keys that are not admin keys.

    Raises:
        ApiError: The client has not sent an admin key.
    """
    if not client.is_operator:
        raise ApiError(
            403,
            "API key: got that of a client, expected one of the operator (--admin-key): this concerns all clients",
            code="operator_only",
        )


def shown_path(path: Path, client: Client) -> str:
    """Returns the path of a model for a client: an admin key sees all of it, others its last part.

    The name of a model of a hub has no secret.
    """
    is_admin = client.is_operator and client != ANONYMOUS
    return str(path) if is_admin or is_name(path) else path.name


class Names:
    """The host names that a server without keys answers to.

    A page in a browser can have its own name resolve to the server's address, and then read what the server answers.
    It cannot change the header `Host`, which still has its own name.

    Args:
        hosts: Names in addition to `localhost` and addresses; `*` allows every name.
        origins: Web origins whose pages may send requests; `*` allows every one.
    """

    def __init__(self, hosts: Sequence[str], origins: Sequence[str]) -> None:
        self._hosts = {host.lower().rstrip(".") for host in hosts}
        self._origins = set(origins)

    def check_host(self, headers: Headers) -> None:
        """Refuses a request to another host name.

        Raises:
            ApiError: It was.
        """
        given = headers.get("host")
        # Browsers always send it.
        if given is None or "*" in self._hosts:
            return
        name = _name(f"//{given}")
        if not (name in self._hosts or _is_local(name) or _is_address(name)):
            raise ApiError(
                421,
                f"Host: got {given[:100]!r}, expected an address, localhost, or a name that the server is told of by "
                f"--allowed-host; or give the server keys by --api-key-file",
                param="Host",
            )

    def check_origin(self, headers: Headers) -> None:
        """Refuses the page of another site.

        Programs other than browsers may have other origins (`app://`, `vscode-webview://`).

        Raises:
            ApiError: It comes from one.
        """
        given = headers.get("origin")
        if given is None or not self._origins.isdisjoint((given, "*")):
            return
        if given != "null" and not given.lower().startswith(("http://", "https://")):
            return
        host = headers.get("host", "")
        if given.partition("//")[2].lower() == host.lower():
            return
        if _is_loopback(_name(given)) and _is_loopback(_name(f"//{host}")):
            return
        raise ApiError(
            403,
            f"Origin: got {given[:100]!r}, expected a page of this server, or one that the server is told of by "
            "--cors-origin",
            param="Origin",
        )


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return _is_local(name) or (_is_address(name) and ipaddress.ip_address(name.partition("%")[0]).is_loopback)
