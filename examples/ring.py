"""Gradients around a ring of sockets: the all-reduce that data-parallel training is made of, in a page of numpy.

Each rank sends to the next one and receives from the one before. A sum of n numbers over k ranks takes 2 (k - 1) steps
of n / k numbers (reduce-scatter, then all-gather), so each rank sends 2 (k - 1) / k of the vector whatever k is. Each
part is summed up on one rank and copied from there: all ranks end with the same bits.
"""

import json
import select
import socket
import time

import numpy as np

_PATIENCE_S = 60.0


class Ring:
    """One rank's place in the ring. Ranks find each other at ``address:port``, where rank 0 listens."""

    def __init__(self, rank, ranks, address, port):
        self.rank = rank
        self.ranks = ranks
        self._next = self._previous = None
        if ranks > 1:
            self._join(address, port)

    def sum(self, vector):
        """The sum of all ranks' vectors, the same bits on each. Raises ConnectionError when a rank is gone."""
        if self.ranks == 1:
            return vector.copy()
        parts = np.array_split(vector.astype(np.float64), self.ranks)
        for step in range(self.ranks - 1):
            mine, theirs = (self.rank - step) % self.ranks, (self.rank - step - 1) % self.ranks
            parts[theirs] = parts[theirs] + self._exchange(parts[mine], len(parts[theirs]))
        for step in range(self.ranks - 1):
            mine, theirs = (self.rank + 1 - step) % self.ranks, (self.rank - step) % self.ranks
            parts[theirs] = self._exchange(parts[mine], len(parts[theirs]))
        return np.concatenate(parts)

    def close(self):
        """Let go of the neighbours."""
        for neighbour in (self._next, self._previous):
            if neighbour is not None:
                neighbour.close()

    def gather(self, number):
        """One number of each rank, in rank order, on every rank."""
        slots = np.zeros(self.ranks)
        slots[self.rank] = number
        return self.sum(slots)

    def _exchange(self, outgoing, count):
        """Send to the next rank while receiving ``count`` numbers from the one before: neither waits for the other."""
        to_send, received = memoryview(outgoing.tobytes()), bytearray()
        wanted = count * 8
        while to_send or len(received) < wanted:
            readable, writable, _ = select.select(
                [self._previous] if len(received) < wanted else [], [self._next] if to_send else [], [], _PATIENCE_S
            )
            if not readable and not writable:
                raise ConnectionError("a neighbour in the ring is silent")
            if writable:
                to_send = to_send[self._next.send(to_send[: 1 << 16]) :]
            if readable:
                data = self._previous.recv(wanted - len(received))
                if not data:
                    raise ConnectionError("a neighbour in the ring is gone")
                received += data
        return np.frombuffer(bytes(received))

    def _join(self, address, port):
        with socket.create_server((address, 0)) as mine:
            ports = self._meet(address, port, mine.getsockname()[1])
            self._next = socket.create_connection((address, ports[(self.rank + 1) % self.ranks]), timeout=_PATIENCE_S)
            mine.settimeout(_PATIENCE_S)
            self._previous, _ = mine.accept()
        for neighbour in (self._next, self._previous):
            neighbour.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            neighbour.setblocking(False)

    def _meet(self, address, port, my_port):
        """Everybody's port, in rank order: rank 0 collects and tells them."""
        if self.rank > 0:
            with _connect_when_up(address, port) as to_first, to_first.makefile("rw") as stream:
                print(json.dumps([self.rank, my_port]), file=stream, flush=True)
                return json.loads(stream.readline())
        ports, streams = {0: my_port}, []
        with socket.create_server((address, port), backlog=self.ranks) as meeting:
            meeting.settimeout(_PATIENCE_S)
            while len(ports) < self.ranks:
                visitor, _ = meeting.accept()
                with visitor:
                    stream = visitor.makefile("rw")
                rank, their_port = json.loads(stream.readline())
                ports[rank] = their_port
                streams.append(stream)
        everybody = [ports[rank] for rank in range(self.ranks)]
        for stream in streams:
            with stream:
                print(json.dumps(everybody), file=stream, flush=True)
        return everybody


def _connect_when_up(address, port):
    """Rank 0 may start later than we do."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=_PATIENCE_S)
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)
