"""`weft serve` as a process: signals, graceful shutdown, and errors at startup."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers import tiny
from tests.helpers.serving import post, wait_for
from weft.serve import server_processes
from weft.serve.http_protocol import allow_descriptors
from weft.serve.request_retries import RETRIES, Journal, WorkerConnections, bytes_written


@contextmanager
def process(*arguments: str, before: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Starts `weft serve` with these arguments on a free port; yields the process and its address."""
    command = [*before, sys.executable, "-m", "weft", "serve", *arguments, "--port", "0", "--device", "cpu", "--no-fast"]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert started.stderr is not None
        output = ""
        while not (found := re.search(r'"serving", "address": "([^"]+)"', output)):
            line = started.stderr.readline()
            assert line, f"the server ended: {output}"
            output += line
        yield started, found.group(1)
    finally:
        started.kill()
        started.wait()
        started.stderr.close()  # type: ignore[union-attr]


def test_sigterm_under_load_answers_all_accepted_requests(reverse_run: Path) -> None:
    with process(f"en-de={reverse_run}", "--window", "20") as (started, url):
        started.send_signal(signal.SIGHUP)
        answers: list[Any] = []

        def client(number: int) -> None:
            """Sends requests, each on a new connection, until the server stops accepting them."""
            for turn in range(10_000):
                text = " ".join("abcdefghijklmnopqrst"[(number + turn) % 14 :][:6])
                try:
                    answer = httpx.post(f"{url}/v1/translate", json={"text": text}, timeout=30, trust_env=False)
                except httpx.ConnectError:
                    return  # refused; one that was accepted is never reset
                answers.append((text, answer))
                if len(answers) == 150:
                    started.send_signal(signal.SIGTERM)

        with ThreadPoolExecutor(12) as pool:
            list(pool.map(client, range(12)))
        lines = [json.loads(line) for line in started.stderr if line.startswith("{")]  # type: ignore[union-attr]
        assert started.wait(30) == 0
    assert len(answers) >= 150 and {answer.status_code for _, answer in answers} == {200}
    assert all(answer.json()["translations"][0]["text"] for _, answer in answers)
    end = lines[-1]
    assert end["event"] == "stopped" and end["taken"] == end["answered"] == len(answers)
    assert any(line["event"] == "reloaded" for line in lines)


@pytest.mark.parametrize(("descriptors", "connections"), [(64, 150), (1024, 1100)])
def test_idle_connections_give_way_if_file_descriptors_run_out(reverse_run: Path, descriptors: int, connections: int) -> None:
    if allow_descriptors(2 * connections) < 2 * connections:
        pytest.skip("this process may not open so many connections")
    limit = (
        f"import resource, os, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors})); "
        "os.execv(sys.executable, sys.argv[1:])"
    )
    with process(f"en-de={reverse_run}", before=[sys.executable, "-c", limit]) as (started, url):
        port = int(url.rpartition(":")[2])
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
        for number in range(5):
            answer = httpx.post(f"{url}/v1/translate", json={"text": f"a b {number}"}, timeout=20, trust_env=False)
            assert answer.status_code == 200
        for line in idle:
            line.close()
        started.send_signal(signal.SIGTERM)
        lines = started.stderr.readlines()  # type: ignore[union-attr]
        assert started.wait(30) == 0
    assert len(lines) < 40 and sum(map(len, lines)) < 20_000


def test_a_restart_hands_over_the_socket_and_a_second_signal_ends_at_once(reverse_run: Path) -> None:
    with process(f"en-de={reverse_run}") as (started, url):
        lost, done = [], threading.Event()

        def client() -> None:
            while not done.is_set():
                answer = httpx.post(f"{url}/v1/translate", json={"text": "a b"}, timeout=30, trust_env=False)
                if answer.json()["translations"][0]["text"] != "b a":
                    lost.append(answer.text)

        form = {"files": {"file": ("x.md", b"a b")}, "data": {"source": "en", "target": "de"}}
        place = httpx.post(f"{url}/translate_file", trust_env=False, **form).json()["translatedFileUrl"]  # type: ignore[arg-type]
        with ThreadPoolExecutor(2) as pool:
            asked = [pool.submit(client) for _ in range(2)]
            started.send_signal(signal.SIGUSR2)
            for line in started.stderr:  # type: ignore[union-attr]
                if '"serving"' in line:
                    other = int(json.loads(line)["pid"])
                    break
            try:
                assert started.wait(30) == 0
                done.set()
                assert [each.result() for each in asked] == [None, None] and not lost and other != started.pid
                assert httpx.get(place, trust_env=False).content == b"b a", "translated files stay"
                with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as line:
                    line.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")  # never ends
                    os.kill(other, signal.SIGTERM)
                    time.sleep(0.5)  # two signals at once would count as one
                    os.kill(other, signal.SIGTERM)
                    line.settimeout(8)  # the body alone would have 10 s
                    with suppress(ConnectionResetError):
                        assert line.recv(1) == b""
            finally:
                done.set()
                with suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)


def test_several_processes_share_a_socket_metrics_and_files(reverse_run: Path) -> None:
    with process(f"en-de={reverse_run}", "--workers", "2", "--threads", "1") as (started, url):

        def lines() -> list[str]:
            return httpx.get(f"{url}/metrics", trust_env=False).text.splitlines()

        def children() -> list[str]:
            return Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()

        for number in range(8):
            answer = httpx.post(f"{url}/v1/translate", json={"text": f"a b {number}"}, timeout=30, trust_env=False)
            assert answer.json()["translations"]
        wait_for(lambda: "weft_texts_total 8.0" in lines() and "weft_models 2.0" in lines())
        form = {"files": {"file": ("x.txt", b"a b")}, "data": {"source": "en", "target": "de"}}
        place = httpx.post(f"{url}/translate_file", trust_env=False, **form).json()["translatedFileUrl"]  # type: ignore[arg-type]
        assert {httpx.get(place, trust_env=False).content for _ in range(6)} == {b"b a"}
        first = children()
        assert len(first) == 2
        os.kill(int(first[1]), signal.SIGKILL)
        wait_for(lambda: len(children()) == 2 and children() != first)
        second = children()
        started.send_signal(signal.SIGTERM)
        assert started.wait(120) == 0
        wait_for(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in second))


def test_the_last_server_deletes_the_translated_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The first one leaves them to the server that replaces it; workers leave them to their parent."""
    leave: list[Any] = []
    monkeypatch.setattr(server_processes.atexit, "register", lambda *call: leave.append(partial(*call)))
    folder = server_processes.files_folder()
    (folder / "x.txt").write_text("a")
    monkeypatch.setenv(server_processes.FILES, str(folder))
    assert server_processes.files_folder() == folder
    monkeypatch.setenv(server_processes.WORKER, "0")
    assert server_processes.files_folder() == folder and len(leave) == 2
    leave[0]()
    assert (folder / "x.txt").exists()
    leave[1]()
    assert not folder.exists()


def children(process: subprocess.Popen[str]) -> list[int]:
    """The processes that a server has started."""
    return [int(each) for each in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]


def translated(line: socket.socket) -> str:
    """The translation in the response on a connection."""
    received = b""
    while b"\r\n\r\n" not in received or not received.endswith(b"}"):
        part = line.recv(65536)
        assert part, f"the connection was closed after {received!r}"
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), received
    return str(json.loads(body)["translations"][0]["text"])


def test_the_requests_of_a_killed_worker_are_answered_by_another(reverse_run: Path) -> None:
    """Idle connections, requests in the queue, requests behind others, and half of a request: nothing is lost."""
    with process(f"en-de={reverse_run}", "--workers", "2", "--threads", "1", "--window", "2000", "--cache", "0") as (
        started,
        url,
    ):
        port, bodies = int(url.rpartition(":")[2]), [b'{"text": "a b %c"}' % letter for letter in b"cdefghijklmn"]
        lines = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in bodies]
        for line, body in zip(lines[:6], bodies, strict=False):
            line.sendall(post(body))
        assert [translated(line) for line in lines[:6]] == [f"{chr(letter)} b a" for letter in b"cdefgh"]
        for number, (line, body) in enumerate(zip(lines, bodies, strict=True)):
            whole = post(body)
            line.sendall(whole if number % 3 else whole[:-4] if number % 2 else whole + whole)
        time.sleep(0.5)
        os.kill(children(started)[0], signal.SIGKILL)
        time.sleep(0.5)
        for number, (line, body) in enumerate(zip(lines, bodies, strict=True)):
            if number % 3 == 0 and number % 2:
                line.sendall(post(body)[-4:])
        wanted = [f"{chr(letter)} b a" for letter in b"cdefghijklmn"]
        assert [translated(line) for line in lines] == wanted
        assert [translated(line) for line in lines[0::6]] == wanted[0::6]
        wait_for(lambda: len(children(started)) == 2)
        os.kill(children(started)[0], signal.SIGKILL)
        for line, body in zip(lines, bodies, strict=True):
            line.sendall(post(body))
        assert [translated(line) for line in lines] == wanted, "connections without a request stay open"
        assert "weft_retried_total" in httpx.get(f"{url}/metrics", trust_env=False).text
        for line in lines:
            line.close()
        started.send_signal(signal.SIGTERM)
        assert started.wait(120) == 0


def test_a_request_that_ends_every_worker_is_given_up(tmp_path: Path) -> None:
    """The parent answers it, and a request whose answer has begun is not given on."""

    async def drive() -> None:
        kept = WorkerConnections(1 << 16, retried.append)
        lines = []
        for worker in range(RETRIES + 1):
            journal = Journal(kept.link(worker).detach())
            kept.serves(worker)
            if worker == 0:
                for text in (b"poison", b"begun"):
                    client, server = socket.socketpair()
                    client.settimeout(10)
                    lines.append(client)
                    journal.begin(server)
                    record = journal.record(server)
                    assert record is not None
                    record.add(text)
                record.answering()
            else:
                journal.take_over(lambda connection, request: taken.append((connection, request)))
                await asyncio.sleep(0.1)
            journal._parent.close()  # as if the process had ended
            [each.close() for each, _ in taken] if worker else server.close()
            kept.ended(worker)
        assert lines[0].recv(1000).startswith(b"HTTP/1.1 500")
        assert lines[1].recv(1) == b""

    retried, taken = list[int](), list[Any]()
    asyncio.run(drive())
    assert retried == [1] * RETRIES and [request for _, request in taken] == [True] * RETRIES


def test_a_worker_that_ends_after_an_answer_leaves_the_connection_open() -> None:
    """At any moment: before the end of the answer was sent, the connection is closed, after it, another worker goes on."""

    async def drive() -> None:
        kept = WorkerConnections(1 << 16, lambda _: None)
        journal = Journal(kept.link(0).detach())
        kept.serves(0)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            for sent in (b"whole answer", b"half an"):
                client = socket.create_connection(listening.getsockname(), timeout=10)
                clients.append(client)
                server, _ = listening.accept()
                journal.begin(server)
                record = journal.record(server)
                assert record is not None
                server.send(b"an earlier answer")
                assert client.recv(100) == b"an earlier answer"
                record.answered(b"", bytes_written(server.fileno()) + len(b"whole answer"))
                server.send(sent)
                servers.append(server)
        journal._parent.close()
        [each.close() for each in servers]
        kept.ended(0)
        journal = Journal(kept.link(1).detach())
        journal.take_over(lambda connection, request: taken.append(connection))
        kept.serves(1)
        await asyncio.sleep(0.2)

    clients, servers, taken = list[socket.socket](), list[socket.socket](), list[socket.socket]()
    asyncio.run(drive())
    assert [client.recv(100) for client in clients] == [b"whole answer", b"half an"]
    assert len(taken) == 1 and taken[0].getpeername() == clients[0].getsockname()
    assert clients[1].recv(100) == b"", "half an answer is not gone on with"


def test_workers_share_a_process_of_the_models_that_is_started_again(reverse_run: Path) -> None:
    with process(f"en-de={reverse_run}", "--model-process", "--threads", "1") as (started, url):

        def children() -> list[str]:
            return Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()

        def translated(text: str) -> str:
            answer = httpx.post(f"{url}/v1/translate", json={"text": text}, timeout=60, trust_env=False)
            return str(answer.json()["translations"][0]["text"])

        first = children()
        assert len(first) == 2 and translated("a b") == "b a"
        os.kill(int(first[0]), signal.SIGKILL)
        assert translated("c d") == "d c", "the request waits for the new process"
        wait_for(lambda: children()[0] == first[1] and len(children()) == 2)
        started.send_signal(signal.SIGTERM)
        assert started.wait(120) == 0
        wait_for(lambda: not any(Path(f"/proc/{child}/exe").exists() for child in first))


def test_a_worker_that_cannot_start_ends_the_server(weft: tiny.Shell) -> None:
    command = [sys.executable, "-m", "weft", "serve", "nowhere", "--workers", "2", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1 and "nowhere: there is no such run folder" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere"], "nowhere: there is no such run folder"),
        (["english-german=nowhere"], "not a language pair"),
        (["en-de="], "names no run folder"),
        (["nowhere", "--proxy", "*"], "believes every client"),
    ],
)
def test_invalid_runs_are_refused(weft: tiny.Shell, arguments: list[str], says: str) -> None:
    weft.fails("serve", *arguments, says=[says])


def test_a_port_in_use_is_reported(weft: tiny.Shell, reverse_run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        weft.fails("serve", reverse_run, "--port", str(port), says=[f"port {port}", "--port"])


def test_a_file_without_keys_is_refused(weft: tiny.Shell, reverse_run: Path, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("\n \n")
    weft.fails("serve", reverse_run, "--api-keys", tmp_path / "keys", says=["no key"])


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "python_multipart", "prometheus_client", "py3langid"])
def test_a_missing_package_is_named(weft: tiny.Shell, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    weft.fails("serve", "runs/x", says=["pip install 'weft-seq2seq[serve]'"])
