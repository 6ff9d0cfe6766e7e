"""`weft generate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import typer

from weft.cli.options import DECODE_SET, DEVICE, OUTPUT, decode_options
from weft.cli.output import opened
from weft.errors import DataError


def generate(
    run: str = typer.Argument(help="Folder of a trained language model."),
    prompt: str = typer.Argument(None, help="The beginning of the text; default: standard input."),
    tokens: int = typer.Option(200, "--tokens", min=1, help="Tokens to write."),
    count: int = typer.Option(1, "--count", min=1, help="Texts to write."),
    temperature: float = typer.Option(None, "--temperature", help="Below 1 is safer, above 1 bolder."),
    top_k: int = typer.Option(None, "--top-k", help="Sample among this many of the most probable tokens."),
    top_p: float = typer.Option(None, "--top-p", help="Sample among the likeliest tokens that together have this probability."),
    seed: int = typer.Option(None, "--seed", help="Seed of the samples."),
    beam: int = typer.Option(None, "--beam", help="Beam search instead of sampling; 1 is greedy."),
    output: Path = OUTPUT,
    as_json: bool = typer.Option(False, "--json", help="JSON lines with prompt, text and score."),
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Continue a text with a language model. Prints the prompt and its continuation, token by token."""
    from weft.runs.translator import load_generator

    options = decode_options(set, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed, beam=beam)
    beginning = _read() if prompt in (None, "-") else prompt
    generator = load_generator(run, device=device)
    streams = count == 1 and not as_json
    with opened(output) as target:

        def write(text: str) -> None:
            target.write(text)
            target.flush()

        if streams:
            write(beginning)
        found = generator.generate(beginning, tokens=tokens, count=count, hear=write if streams else None, **options)
        if as_json:
            for each in found:
                write(json.dumps(each.document(), ensure_ascii=False) + "\n")
        else:
            write("\n" if streams else "\n---\n".join(each.prompt + each.text for each in found) + "\n")


def _read() -> str:
    if sys.stdin.isatty():
        return ""
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"standard input: byte {error.start} is not UTF-8; convert the text first") from None
