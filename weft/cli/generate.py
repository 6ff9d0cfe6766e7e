"""`weft generate`."""

from __future__ import annotations

import json
import sys

import typer

from weft.cli.options import decode_options
from weft.errors import DataError


def generate(
    run: str = typer.Argument(help="Folder of a trained language model."),
    prompt: str = typer.Argument(None, help="How the text begins; default: standard input.", show_default=False),
    tokens: int = typer.Option(200, "--tokens", min=1, help="How many tokens to write."),
    count: int = typer.Option(1, "--count", min=1, help="How many texts to draw."),
    temperature: float = typer.Option(None, "--temperature", help="Below 1 safer, above 1 bolder.", show_default=False),
    top_k: int = typer.Option(None, "--top-k", help="Draw among so many likeliest tokens.", show_default=False),
    top_p: float = typer.Option(
        None, "--top-p", help="Draw among the likeliest tokens that have this probability together.", show_default=False
    ),
    seed: int = typer.Option(None, "--seed", help="Another seed draws another text.", show_default=False),
    beam: int = typer.Option(None, "--beam", help="Search instead of drawing; 1 is greedy.", show_default=False),
    as_json: bool = typer.Option(False, "--json", help="JSON lines with prompt, text and score."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1, …"),
    set: list[str] = typer.Option(
        [], "--set", help="Any setting of decoding, e.g. --set decode.no_repeat_ngram=8.", metavar="KEY=VALUE"
    ),
) -> None:
    """Go on with a text, as a language model would: the prompt and what follows it, written as it comes."""
    from weft.generator import load_generator

    options = decode_options(set, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, beam=beam)
    beginning = _read() if prompt in (None, "-") else prompt
    generator = load_generator(run, device=device)
    streams = count == 1 and not as_json
    if streams:
        _write(beginning)
    found = generator.generate(beginning, tokens=tokens, count=count, hear=_write if streams else None, **options)
    if as_json:
        for each in found:
            plain = {"prompt": each.prompt, "text": each.text, "score": round(each.score, 6)}
            _write(json.dumps(plain, ensure_ascii=False) + "\n")
    elif streams:
        _write("\n")
    else:
        _write("\n---\n".join(each.prompt + each.text for each in found) + "\n")


def _read() -> str:
    if sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: byte {error.start} is not UTF-8; convert the text first") from None


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
