"""A listening socket that takes no new connections: those in its queue are accepted, others are refused at its end."""

import errno
import os
import select
import socket

import pytest

from cove.linux.syn_filter import drop_new_connections


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_what_is_queued_is_accepted_and_nothing_more(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listener, socket.socket(family) as late:
        listener.setblocking(False)
        address = listener.getsockname()[:2]
        with socket.create_connection(address) as early:
            early.sendall(b"a call")
            if not drop_new_connections(listener):
                assert os.geteuid(), "root may set filters"
                pytest.skip("this kernel lets only root set filters of sockets")
            late.setblocking(False)
            assert late.connect_ex(address) == errno.EINPROGRESS
            accepted, peer = listener.accept()
            with accepted:
                assert peer[:2] == early.getsockname()[:2]
                assert accepted.recv(100) == b"a call"
                accepted.sendall(b"an answer")
            assert early.recv(100) == b"an answer"
        with pytest.raises(BlockingIOError):
            listener.accept()
        listener.close()
        assert select.select([], [late], [], 30)[1] == [late]
        assert late.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED
