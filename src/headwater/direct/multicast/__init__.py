"""Messages over UDP multicast, repaired by a sender that remembers what it has sent.

    lines, topic ─▶ running.Sending ─▶ group ─▶ running.Receiving ─▶ stdout, topic
                     memory.py      ◀─ requests ─  streams.py
                     (remembering)     (unicast)   (order, gaps, repair)
                           packets.py: what is on the wire

memory.py and streams.py know neither sockets nor clocks: they get packets and the time.
"""
