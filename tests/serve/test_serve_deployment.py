"""The files in deploy/: a real nginx in front of the server, and what the others start."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import yaml
from typer.testing import CliRunner

from tests.helpers.nginx import DEPLOY, free_port, nginx
from tests.helpers.serving import wait_for
from weft.cli import make_app


def test_nginx_in_front_hides_nothing_from_the_server(serve: Any, tmp_path: Path) -> None:
    shown = serve(hosts=("translate.example",), prefix="/weft", proxies="127.0.0.1")
    with nginx(tmp_path, shown.url) as port:
        transport = httpx.HTTPTransport(verify=False, local_address="127.0.0.9")
        named = {"Host": "translate.example"}
        with httpx.Client(base_url=f"https://127.0.0.1:{port}", transport=transport, headers=named) as client:
            asked = {"q": "a b c", "source": "en", "target": "de"}
            answer = client.post("/weft/translate", json=asked, headers={"Origin": "https://translate.example"})
            assert answer.json() == {"translatedText": "c b a"} and "strict-transport-security" in answer.headers
            assert client.post("/weft/translate", json=asked, headers={"Origin": "https://evil.example"}).status_code == 403
            assert client.get("/weft/static/page.css").status_code == client.get("/weft/").status_code == 200
            form = {"files": {"file": ("x.txt", b"a b")}, "data": {"source": "en", "target": "de"}}
            place = client.post("/weft/translate_file", **form).json()["translatedFileUrl"]  # type: ignore[arg-type]
            assert place.startswith("https://translate.example/weft/download_file/")
            assert client.get(place.removeprefix("https://translate.example")).content == b"b a"
            assert client.post("/weft/translate", content=b"x" * (2 << 20)).status_code == 413
    first = next(each for each in shown.lines if each["event"] == "request")
    assert first["client"] == "127.0.0.9" and first["id"] == answer.headers["x-request-id"]


def test_a_client_cannot_choose_its_address(serve: Any) -> None:
    shown = serve()
    shown.client.get("/languages", headers={"X-Forwarded-For": "6.6.6.6"})
    wait_for(lambda: any(each["event"] == "request" for each in shown.lines))
    assert all(each["client"] == "127.0.0.1" for each in shown.lines if each["event"] == "request")


def options_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_options_in_the_files_exist() -> None:
    known = CliRunner().invoke(make_app(["serve"]), ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    unit = next(line for line in (DEPLOY / "weft.service").read_text().splitlines() if line.startswith("ExecStart="))
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["weft"]["command"]
    entry = next(line for line in (DEPLOY / "Dockerfile").read_text().splitlines() if line.startswith("ENTRYPOINT"))
    given = options_of(shlex.split(unit)) | options_of(compose) | options_of(shlex.split(entry.replace(",", " ").strip("]")))
    assert len(given) >= 4 and all(option in known for option in given), given


def test_each_service_has_an_address_of_its_own() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    addresses = {name: service["networks"]["inside"]["ipv4_address"] for name, service in services.items()}
    assert len(set(addresses.values())) == len(services)
    command = services["weft"]["command"]
    assert command[command.index("--proxy") + 1] == addresses["nginx"]


def dockerfile(instruction: str) -> list[str]:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    return [line.removeprefix(f"{instruction} ") for line in lines if line.startswith(f"{instruction} ")]


def test_the_build_context_has_what_the_image_copies() -> None:
    kept = {line[1:] for line in (DEPLOY.parent / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == {name for line in dockerfile("COPY") for name in line.split()[:-1]}
    assert all((DEPLOY.parent / name).exists() for name in kept)


def test_the_health_check_of_the_image_uses_no_proxy(serve: Any) -> None:
    (line,) = dockerfile("HEALTHCHECK")
    check = json.loads(line.partition("CMD ")[2])[-1]
    assert "http://localhost:5000" in check
    proxied = os.environ | {"http_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    for server, status in ((serve().url, 0), (f"http://127.0.0.1:{free_port()}", 1)):
        asked = [sys.executable, "-c", check.replace("http://localhost:5000", server)]
        assert subprocess.run(asked, env=proxied, capture_output=True).returncode == status
