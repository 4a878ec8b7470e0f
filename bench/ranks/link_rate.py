#!/usr/bin/env python3
"""The rate of a link with both directions at work: `link_rate.py listen|connect ADDRESS PORT MIB`.

Both ends print MB/s of what they received.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time

BLOCK = 1 << 20


def connected(side: str, address: tuple[str, int]) -> socket.socket:
    if side == "listen":
        with socket.create_server(address) as server:
            return server.accept()[0]
    for _ in range(200):
        try:
            return socket.create_connection(address, timeout=60)
        except ConnectionRefusedError:
            time.sleep(0.05)  # the other end has not begun to listen
    raise SystemExit(f"nobody listens at {address[0]}:{address[1]}")


def send(link: socket.socket, block: bytes, count: int) -> None:
    with contextlib.suppress(ConnectionError):  # the other end was ended from outside
        for _ in range(count):
            link.sendall(block)


def main() -> None:
    side, host, port, mib = sys.argv[1:]
    size = int(mib) * BLOCK
    with connected(side, (host, int(port))) as link:
        begin = time.monotonic()
        block = bytes(BLOCK)
        sender = threading.Thread(target=send, args=(link, block, int(mib)), daemon=True)
        sender.start()
        left = size
        buffer = bytearray(BLOCK)
        while left > 0:
            received = link.recv_into(buffer)
            if received == 0:
                raise SystemExit("the other end has closed the link")
            left -= received
        seconds = time.monotonic() - begin
        sender.join()
    print(size / seconds / 1e6)


if __name__ == "__main__":
    main()
