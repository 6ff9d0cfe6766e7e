"""Connections of a worker that is killed go to another one, and requests without an answer are read again."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from weft.serve.request_retries import AVAILABLE, GIVEN_UP, RETRIES, Journal, RequestRecord, WorkerConnections, bytes_written

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="needs Linux")


@dataclass
class Workers:
    """A parent with workers in this process, and connections to the first of them."""

    parent: WorkerConnections
    listening: socket.socket
    numbers: dict[int, int] = field(default_factory=dict)
    journals: dict[int, Journal] = field(default_factory=dict)
    taken: list[tuple[int, socket.socket, bool]] = field(default_factory=list)

    def start(self, worker: int, serves: bool = True) -> Journal:
        self.numbers[worker] = self.parent.link(worker).detach()
        self.journals[worker] = Journal(self.numbers[worker])
        self.journals[worker].take_over(lambda connection, *, request: self.taken.append((worker, connection, request)))
        if serves:
            self.parent.serves(worker)
        return self.journals[worker]

    def connect(self, worker: int) -> tuple[socket.socket, socket.socket, RequestRecord]:
        """The client's end, the worker's end and its record."""
        client = socket.create_connection(self.listening.getsockname())
        client.settimeout(10)
        with self.journals[worker].listening(self.listening.dup()) as listening:
            connection, _ = listening.accept()
        record = self.journals[worker].record(connection)
        assert record is not None and record.length == 0
        return client, connection, record

    def kill(self, worker: int, *connections: socket.socket, stopping: bool = False) -> None:
        asyncio.get_running_loop().remove_reader(self.numbers[worker])
        for each in connections:
            each.close()
        os.close(self.numbers[worker])
        self.parent.ended(worker, stopping=stopping)

    async def until(self, count: int) -> None:
        """Waits until so many connections have been taken over."""
        for _ in range(5000):
            if len(self.taken) >= count:
                return
            await asyncio.sleep(0.001)
        raise AssertionError(self.taken)


def story(told: Callable[[Workers], Awaitable[None]], most: int = 4096) -> list[int]:
    """Runs a story, and returns what the parent has logged."""
    logged: list[int] = []

    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await told(Workers(WorkerConnections(most, logged.append), listening))

    asyncio.run(run())
    return logged


def test_a_record_is_memory_that_both_sides_share() -> None:
    record = RequestRecord.new()
    record.add(b"GET /")
    record.add(b" HTTP")
    other = RequestRecord(os.dup(record.descriptor))
    assert other.content == b"GET / HTTP" and (other.retries, other.end) == (0, 0)
    record.retried()
    assert RequestRecord(record.descriptor).retries == 1
    record.answering()
    record.add(b"the next request")
    assert RequestRecord(record.descriptor).length == record.length < 0
    record.answered(b"the next", 7)
    again = RequestRecord(record.descriptor)
    assert (again.content, again.retries, again.end) == (b"the next", 0, 7)
    again.add(b" one")
    assert RequestRecord(record.descriptor).content == b"the next one"


def test_the_system_knows_how_much_of_an_answer_it_has_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = socket.create_connection(listening.getsockname())
        connection, _ = listening.accept()
        for total in (5, 10):
            connection.sendall(b"12345")
            client.recv(5)
            assert bytes_written(connection.fileno()) == total
        number = connection.fileno()
        connection.close()
        assert bytes_written(number) == 0
        client.close()


def test_a_request_without_an_answer_is_read_again_by_another_worker() -> None:
    async def told(workers: Workers) -> None:
        workers.start(1)
        client, connection, record = workers.connect(1)
        record.add(b"POST /translate")
        idle, other, _ = workers.connect(1)
        workers.kill(1, connection, other)  # no worker is left
        workers.start(2)
        await workers.until(2)
        found = {request: (worker, taken) for worker, taken, request in workers.taken}
        worker, taken = found[True]
        kept = workers.journals[2].record(taken)
        assert worker == 2 and kept is not None and (kept.content, kept.retries) == (b"POST /translate", 1)
        taken.sendall(b"answer")
        assert client.recv(99) == b"answer"
        found[False][1].sendall(b"idle")
        assert idle.recv(99) == b"idle"

    assert story(told) == [1], "one request was given on; the other connection had sent none"


def test_what_ends_several_workers_is_answered_with_an_error() -> None:
    async def told(workers: Workers) -> None:
        client, connection, record = (workers.start(1), workers.connect(1))[1]
        record.add(b"POST /deadly")
        for number in range(1, RETRIES + 1):
            workers.start(number + 1)
            workers.kill(number, connection)
            await workers.until(number)
            worker, connection, request = workers.taken[-1]
            assert request and worker == number + 1
            await asyncio.sleep(0.01)
        workers.start(9)
        workers.kill(RETRIES + 1, connection)
        answer = b""
        while more := client.recv(999):
            answer += more
        assert answer == GIVEN_UP and len(workers.taken) == RETRIES

    assert story(told) == [1] * RETRIES


@pytest.mark.parametrize("sent", ["nothing", "part", "all"])
def test_an_answer_that_has_begun_ends_the_connection_unless_all_of_it_was_sent(sent: str) -> None:
    async def told(workers: Workers) -> None:
        workers.start(1)
        workers.start(2)
        client, connection, record = workers.connect(1)
        record.add(b"GET /")
        record.answering()
        if sent != "nothing":
            record.answered(b"", bytes_written(connection.fileno()) + 6)
            connection.sendall(b"answer" if sent == "all" else b"ans")
        workers.kill(1, connection)
        if sent == "all":
            await workers.until(1)
            assert workers.taken[0][0] == 2 and not workers.taken[0][2]
            workers.taken[0][1].sendall(b"!")
            assert client.recv(99).startswith(b"answer")
        else:
            assert client.recv(99) == {"nothing": b"", "part": b"ans"}[sent] and client.recv(99) == b""
            assert not workers.taken

    assert story(told) == []


def test_a_connection_that_the_worker_closes_ends_and_is_not_given_on() -> None:
    async def told(workers: Workers) -> None:
        journal = workers.start(1)
        client, connection, record = workers.connect(1)
        record.add(b"GET /")
        journal.end(connection)
        assert client.recv(9) == b"" and journal.record(connection) is None
        journal.end(connection)
        workers.start(2)
        workers.kill(1, connection)
        await asyncio.sleep(0.01)
        assert not workers.taken

    assert story(told) == []


def test_connections_go_to_the_worker_that_has_fewest() -> None:
    async def told(workers: Workers) -> None:
        for number in (1, 2, 3):
            workers.start(number)
        ours = [workers.connect(1) for _ in range(5)]
        theirs = [workers.connect(2) for _ in range(3)]
        await asyncio.sleep(0.01)
        workers.kill(1, *(connection for _, connection, _ in ours))
        await workers.until(5)
        assert [worker for worker, _, _ in workers.taken].count(3) == 4
        assert theirs

    story(told)


@pytest.mark.parametrize(("most", "stopping"), [(3, False), (4096, True)])
def test_connections_end_with_the_server_or_if_there_are_too_many(most: int, stopping: bool) -> None:
    async def told(workers: Workers) -> None:
        workers.start(1)
        workers.start(2)
        client, connection, record = workers.connect(1)
        record.add(b"GET /")
        workers.kill(1, connection, stopping=stopping)
        workers.parent.ended(1)  # once more changes nothing
        assert client.recv(9) == b""
        await asyncio.sleep(0.01)
        assert not workers.taken

    assert story(told, most) == []
