"""ZeroMQ sockets as ends of topics: SUB and PULL write to one, PUB and PUSH read from one.

    peers ─▶ inbound.py (SUB, PULL) ─▶ topic ─▶ outbound.py (PUB, PUSH) ─▶ peers
                       peers.py: the socket, its bounds, and who is connected

Each socket has a thread. ZeroMQ has no acknowledgements: what a socket has taken or has been given
is lost with a process that is killed, ours or the peer's. Imported only where pyzmq is installed.
"""
