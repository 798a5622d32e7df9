"""Put on a kernel's PYTHONPATH, this leaves Python no network but the machine's own loopback."""

import socket

_connect = socket.socket.connect


def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1"):
        raise OSError(f"no network in this test: {address}")
    return _connect(self, address)


def getaddrinfo(host, *args, _real=socket.getaddrinfo, **kwargs):
    if host not in (None, "localhost", "127.0.0.1", "::1"):
        raise socket.gaierror(f"no network in this test: {host}")
    return _real(host, *args, **kwargs)


socket.socket.connect = connect
socket.getaddrinfo = getaddrinfo
