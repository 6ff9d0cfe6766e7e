"""nginx with the configuration in deploy/, on a free port of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.helpers.serving import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
MAIN = """
daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{}}
http {{
  access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/1; uwsgi_temp_path {folder}/2; scgi_temp_path {folder}/3;
  include {folder}/weft.conf;
}}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@contextmanager
def nginx(folder: Path, server: str) -> Iterator[int]:
    """nginx with deploy/nginx.conf, on a free port, before a server on this machine; yields its port."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or shutil.which("openssl") is None:
        pytest.skip("nginx or openssl is not installed")
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=translate.example"
    subprocess.run(
        [*make.split(), "-keyout", folder / "translate.key", "-out", folder / "translate.pem"], check=True, capture_output=True
    )
    port = free_port()
    replaced = {"listen 80;": f"listen 127.0.0.1:{free_port()};", "listen 443 ssl": f"listen 127.0.0.1:{port} ssl"}
    replaced |= {"http://127.0.0.1:5000": server, "/etc/ssl/": f"{folder}/"}
    text = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    for old, new in replaced.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "weft.conf").write_text(text, encoding="utf-8")
    (folder / "main.conf").write_text(MAIN.format(folder=folder), encoding="utf-8")
    started = subprocess.Popen([program, "-c", folder / "main.conf", "-p", folder], stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0)
        yield port
    finally:
        started.terminate()
        started.wait(20)
