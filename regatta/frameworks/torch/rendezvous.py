"""How the processes of a group find and reach each other, on one machine or on several."""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

from regatta.errors import RegattaError, UsageError

EXCHANGE_TIMEOUT = timedelta(days=7)  # the pool notices a death long before
_SIOCGIFADDR = 0x8915  # asks Linux for the address of an interface


class PeerFailedError(RegattaError):
    """Another process of the group has failed, and reports the reason itself; or it is gone."""


class RendezvousServer:
    """Where processes of other machines find this one: a socket, and a store on it once it is needed."""

    def __init__(self, address: str) -> None:
        self._socket = _listen(address)
        self.address, self._port = address, self._socket.getsockname()[1]
        self.host = f"{address}:{self._port}"

    @cached_property
    def store(self) -> Any:
        file = self._socket.detach()
        return _distributed().TCPStore(
            self.address, self._port, None, True, wait_for_workers=False, master_listen_fd=file
        )


def _listen(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        return socket.create_server((address, 0), family=family)
    except OSError:  # only other machines know this machine by that address
        return socket.create_server(("", 0), family=family)


def file_store(path: Path, width: int) -> Any:
    """A store through which processes of one machine find each other."""
    return _distributed().FileStore(str(path), width)


def network_store(host: str, name: str, server: RendezvousServer | None) -> Any:
    """A store through which processes on several machines find each other; `server` if this process runs it."""
    dist = _distributed()
    if server is not None:
        return dist.PrefixStore(name, server.store)
    address, _, port = host.rpartition(":")
    with reaching_peers():
        return dist.PrefixStore(name, dist.TCPStore(address, int(port), None, False, wait_for_workers=False))


def connect(store: Any, rank: int, width: int, backend: str, device: str, address: str | None = None) -> None:
    """Connect the processes of a group; a process is in one group at a time.

    `address` is how processes on other machines reach this one; None if there are no others.
    """
    import torch

    dist = _distributed()
    if dist.is_initialized():
        dist.destroy_process_group()
    if device.startswith("cuda"):
        torch.cuda.set_device(torch.device(device).index or 0)
    with reaching_peers(), _use_interface(address):
        dist.init_process_group(backend, store=store, rank=rank, world_size=width, timeout=EXCHANGE_TIMEOUT)


def _distributed() -> Any:
    import torch.distributed as dist

    if not dist.is_available():
        raise UsageError("This PyTorch was built without torch.distributed, which groups of workers need.")
    return dist


@contextmanager
def _use_interface(address: str | None) -> Iterator[None]:
    """A scope in which gloo uses the network interface of that address, unless the user has chosen one.

    By default gloo uses the interface of the host name, which other machines often cannot reach.
    """
    name = _interface(address)
    if name is None or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def _interface(address: str | None) -> str | None:
    """The interface with an address, if it can be found; without an address, the loopback interface."""
    if address is None:
        return "lo" if sys.platform == "linux" else "lo0"
    if sys.platform != "linux":
        return None
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no address
                found = fcntl.ioctl(asked.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return None


@contextmanager
def reaching_peers() -> Iterator[None]:
    """A scope in which only the connection to other processes can fail; PyTorch has no exception class for that."""
    try:
        yield
    except RuntimeError as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise PeerFailedError(f"The others of the group cannot be reached: {line}") from error
