"""Requests that outlive their worker, if that is killed.

A worker gives the parent a copy of every connection that it accepts, together with a record: memory that both share, into
which it writes what it reads, until the answer begins. When the worker ends, the parent gives its connections to another one,
which reads an unanswered request again from its record. A connection whose answer has begun is closed, unless the system has
taken all of it. Linux only.
"""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

JOURNAL_FD = "WEFT_JOURNAL_FD"
"""Environment variable of a worker: the number of its socket to the parent."""

AVAILABLE = hasattr(os, "memfd_create") and hasattr(socket, "recv_fds")

RETRIES = 2
"""The number of times that a request is given to another worker. It may be what ends them."""

SPARE = 64
"""File descriptors that the parent leaves for other purposes."""

HEADER = struct.Struct("qqq")
ANSWERING = -1
"""The length of a record while a response is being sent."""

BYTES_ACKED = slice(120, 128)
"""The place in Linux's `struct tcp_info` of the number of bytes that the other side has confirmed."""

BUFFER = 1 << 20
"""Bytes of messages between a worker and the parent that may wait."""

GIVEN_UP = b"""HTTP/1.1 500 Internal Server Error\r
Content-Type: application/json\r
Content-Length: 26\r
Connection: close\r
\r
{"error":"internal error"}"""


class Accept(Protocol):
    """Serves a connection; `request` says whether it has sent something that was not answered."""

    def __call__(self, connection: socket.socket, *, request: bool) -> None: ...


def bytes_written(connection: int) -> int:
    """The bytes that the system has taken for a TCP connection since it was opened, or 0 if that cannot be known."""
    try:
        with socket.socket(fileno=os.dup(connection)) as tcp:
            before = None
            while (waiting := _waiting_bytes(connection)) != before:  # else some were confirmed between the two calls
                before = waiting
                acknowledged = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_ACKED.stop)[BYTES_ACKED]
        return int.from_bytes(acknowledged, "little") + waiting if len(acknowledged) == 8 else 0
    except OSError:
        return 0


def _waiting_bytes(connection: int) -> int:
    """The bytes that were written and that the other side has not confirmed."""
    return int(struct.unpack("i", fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(4)))[0])


class RequestRecord:
    """The bytes that a client has sent since its last answer, how often they were given on, and where that answer ends.

    The end of the answer is what `bytes_written` says when all of it has been sent. It is recorded before the last bytes are
    sent, so a worker that is killed at any moment leaves a record that tells the parent whether the client has its answer.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.length, self.retries, self.end = HEADER.unpack(os.pread(descriptor, HEADER.size, 0))

    @classmethod
    def new(cls) -> "RequestRecord":
        """A record of a connection that has sent nothing."""
        descriptor = os.memfd_create("weft-request")
        os.write(descriptor, HEADER.pack(0, 0, 0))
        return cls(descriptor)

    @property
    def content(self) -> bytes:
        return os.pread(self.descriptor, self.length, HEADER.size)

    def add(self, data: bytes) -> None:
        """Adds what has been read, if no answer has begun: what comes during one belongs to a later request."""
        if self.length != ANSWERING:
            os.pwrite(self.descriptor, data, HEADER.size + self.length)
            self._write(self.length + len(data), self.retries)

    def answering(self) -> None:
        """The answer begins, so the request is not given on any more."""
        if self.length != ANSWERING:
            self._write(ANSWERING, self.retries)

    def answered(self, rest: bytes, end: int) -> None:
        """The answer has been sent when `bytes_written` is `end`. rest: what the client has sent after the request."""
        os.ftruncate(self.descriptor, HEADER.size)
        os.pwrite(self.descriptor, rest, HEADER.size)
        self.end = end
        self._write(len(rest), 0)

    def retried(self) -> None:
        self._write(self.length, self.retries + 1)

    def _write(self, length: int, retries: int) -> None:
        self.length, self.retries = length, retries
        os.pwrite(self.descriptor, HEADER.pack(length, retries, self.end), 0)


class Journal:
    """A worker's side: tells the parent which connections are open, and takes over those of other workers."""

    def __init__(self, number: int) -> None:
        self._parent = socket.socket(fileno=number)
        self._parent.setblocking(False)
        os.set_inheritable(number, False)
        self._records: dict[int, RequestRecord] = {}

    def listening(self, listening: socket.socket) -> socket.socket:
        """This listening socket, whose connections the parent knows before anything is read from them."""
        return _JournalledSocket(listening, self)

    def begin(self, connection: socket.socket, record: RequestRecord | None = None) -> None:
        """Tells the parent about a connection. If that is not possible, its requests are not retried."""
        try:
            record = record or RequestRecord.new()
        except OSError:
            return
        try:
            number = connection.fileno()
            socket.send_fds(self._parent, [struct.pack("q", number)], [number, record.descriptor])
            self._records[number] = record
        except OSError:
            os.close(record.descriptor)

    def record(self, connection: socket.socket) -> RequestRecord | None:
        """The record of an open connection."""
        return self._records.get(connection.fileno())

    def end(self, connection: socket.socket) -> None:
        """Tells the parent that a connection is about to be closed."""
        record = self._records.pop(connection.fileno(), None)
        if record is not None:
            with suppress(OSError):  # the parent has a copy, so closing it here would not end the connection
                connection.shutdown(socket.SHUT_RDWR)
            with suppress(OSError):
                self._parent.send(struct.pack("q", connection.fileno()))
            os.close(record.descriptor)

    def take_over(self, accept: Accept) -> None:
        """Calls `accept` with each connection that the parent gives to this worker from now on."""
        loop = asyncio.get_running_loop()

        def receive() -> None:
            message, descriptors, *_ = socket.recv_fds(self._parent, 16, 2)
            if not message:
                loop.remove_reader(self._parent)  # the parent has ended
            elif len(descriptors) == 2:
                connection = socket.socket(fileno=descriptors[0])
                connection.setblocking(False)
                record = RequestRecord(descriptors[1])
                self.begin(connection, record)
                accept(connection, request=record.length > 0)
            else:
                _close(descriptors)

        loop.add_reader(self._parent, receive)


class _JournalledSocket(socket.socket):
    """A listening socket that tells a journal about each connection."""

    def __init__(self, listening: socket.socket, journal: Journal) -> None:
        super().__init__(listening.family, listening.type, listening.proto, listening.detach())
        self._journal = journal

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        self._journal.begin(connection)
        return connection, address


class WorkerConnections:
    """The parent's side: the open connections of each worker, as two file descriptors each, the connection and its record.

    most: the largest number of a descriptor that is kept · log: is told how many requests other workers have been given.
    """

    def __init__(self, most: int, log: Callable[[int], None]) -> None:
        self._most, self._log = most, log
        self._links: dict[int, socket.socket] = {}
        self._open: dict[int, dict[int, list[int]]] = {}
        self._serving: dict[int, dict[int, list[int]]] = {}  # what was given to a worker that serves, until it says so
        self._orphans: list[list[int]] = []

    def link(self, worker: int) -> socket.socket:
        """The socket of a new worker, whose number is in JOURNAL_FD. Close it when the worker has been started."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        ours.setblocking(False)
        self._links[worker], self._open[worker] = ours, {}
        asyncio.get_running_loop().add_reader(ours, self._receive, worker)
        return theirs

    def serves(self, worker: int) -> None:
        """A worker is ready. Gives it connections that wait for one."""
        self._serving[worker] = {}
        self._give()

    def ended(self, worker: int, *, stopping: bool = False) -> None:
        """Gives the connections of a worker that has ended to others, unless the server stops."""
        if worker not in self._links:
            return
        while self._receive(worker):
            pass
        asyncio.get_running_loop().remove_reader(self._links[worker])
        self._links.pop(worker).close()
        self._orphans += self._serving.pop(worker, {}).values()
        for descriptors in self._open.pop(worker).values():
            if stopping or not _can_go_on(*descriptors):
                _close(descriptors)
            else:
                self._orphans.append(descriptors)
        if not stopping:
            self._give()

    def _receive(self, worker: int) -> bool:
        """Reads one message of a worker. Returns whether there was one."""
        try:
            message, descriptors, *_ = socket.recv_fds(self._links[worker], 16, 2)
        except BlockingIOError:
            return False
        except OSError:
            message, descriptors = b"", []
        if not message:
            asyncio.get_running_loop().remove_reader(self._links[worker])
            return False
        (number,) = struct.unpack("q", message)
        _close(self._open[worker].pop(number, []))
        if len(descriptors) == 2 and max(descriptors) < self._most:
            self._open[worker][number] = descriptors
            _close(self._serving.get(worker, {}).pop(os.fstat(descriptors[1]).st_ino, []))
        else:
            _close(descriptors)  # the worker has closed it, or there are too many
        return True

    def _give(self) -> None:
        """Gives connections that have no worker to those that serve, if there are any."""
        waiting, self._orphans = self._orphans, []
        requests = 0
        for descriptors in waiting:
            for worker in sorted(self._serving, key=lambda each: len(self._open[each]) + len(self._serving[each])):
                with suppress(OSError):
                    socket.send_fds(self._links[worker], [b"take over"], descriptors)
                    self._serving[worker][os.fstat(descriptors[1]).st_ino] = descriptors
                    requests += RequestRecord(descriptors[1]).length > 0
                    break
            else:
                self._orphans.append(descriptors)
        if requests:
            self._log(requests)


def _can_go_on(connection: int, memory: int) -> bool:
    """Whether another worker may take over a connection. Answers a request that has ended workers before."""
    record = RequestRecord(memory)
    if record.length == ANSWERING or bytes_written(connection) < record.end:
        return False
    if record.length > 0 and record.retries >= RETRIES:
        with suppress(OSError):
            os.write(connection, GIVEN_UP)
        return False
    if record.length > 0:
        record.retried()
    return True


def _close(descriptors: list[int]) -> None:
    for each in descriptors:
        with suppress(OSError):
            os.close(each)
