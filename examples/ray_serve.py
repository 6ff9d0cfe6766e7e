"""Serves a trained run on Ray Serve: requests that wait together are one batch, and replicas are added while many wait.

    pip install 'ray[serve]>=2.60'
    python examples/ray_serve.py runs/ende --port 8000
    curl localhost:8000 -d '{"q": "A dog runs."}'

Each replica loads the model once, on a GPU of its own if `--gpus 1` says so. On a cluster, start `serve run` with
`examples.ray_serve:application run=/shared/runs/ende`. `weft serve` is simpler on one machine: it has LibreTranslate's API,
terms, documents, keys and limits; Ray Serve is for many machines.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

from ray import serve
from starlette.requests import Request

import weft

BATCH, WAIT = 32, 0.01
"""Texts of a batch at the most, and seconds that the first of them waits for others."""


@serve.deployment(max_ongoing_requests=4 * BATCH, autoscaling_config={"min_replicas": 1, "max_replicas": 8})
class Translations:
    """One replica: a trained run, and a queue of requests."""

    def __init__(self, run: str, device: str) -> None:
        self.translator = weft.load(run, device=device)

    @serve.batch(max_batch_size=BATCH, batch_wait_timeout_s=WAIT)
    async def translate(self, texts: list[str]) -> list[str]:
        # In a thread, so that the replica goes on receiving requests.
        found = await asyncio.to_thread(self.translator.translate, texts)
        return [each.text for each in found]

    async def __call__(self, request: Request) -> dict[str, Any]:
        """{"q": a text or a list of texts} → {"translatedText": the same of translations}, as LibreTranslate's API."""
        asked = (await request.json())["q"]
        if isinstance(asked, str):
            return {"translatedText": await self.translate(asked)}
        return {"translatedText": await asyncio.gather(*(self.translate(text) for text in asked))}


def application(arguments: dict[str, str]) -> serve.Application:
    """The application for `serve run`: run=FOLDER, and device=cuda and gpus=1 for a GPU per replica."""
    needs = {"num_gpus": float(arguments.get("gpus", 0)), "num_cpus": 1}
    deployment = Translations.options(ray_actor_options=needs)
    return deployment.bind(arguments["run"], arguments.get("device", "auto"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("run")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--gpus", default="0", help="of a replica")
    options = parser.parse_args()
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    serve.run(application({"run": options.run, "gpus": options.gpus}), blocking=True)


if __name__ == "__main__":
    main()
