"""The command line: one file per command. This one puts them together and turns errors into messages."""

from __future__ import annotations

import atexit
import io
import os
import sys
import threading

import typer

from weft import __version__
from weft.access import denied
from weft.cli import (
    align,
    average,
    bench,
    compare,
    demo,
    dictionary,
    distill,
    doctor,
    evaluate,
    explain,
    generate,
    iterate,
    listing,
    merge,
    new,
    predict,
    serve,
    shortlist,
    train,
)
from weft.cli.help import Group, describe
from weft.collecting import rarely
from weft.errors import Interrupted, WeftError

NO_MEMORY = "error: out of memory; lower train.batch_tokens or, for decoding, decode.batch_tokens and decode.max_length"

app = typer.Typer(
    name="weft",
    cls=Group,
    help="Train, evaluate, use and explain sequence-to-sequence models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("train")(train.train)
app.command("translate", help="Translate a file, a text, or standard input line by line as it comes.")(predict.predict)
app.command("predict")(predict.predict)
app.command("serve")(serve.serve)
app.command("evaluate")(evaluate.evaluate)
app.command("explain")(explain.explain)
app.command("align")(align.align)
app.command("generate")(generate.generate)
app.command("compare")(compare.compare)
app.command("bench")(bench.bench)
app.command("distill")(distill.distill)
app.command("dictionary")(dictionary.dictionary)
app.command("iterate")(iterate.iterate)
app.command("backtranslate")(distill.backtranslate)
app.command("shortlist")(shortlist.shortlist)
app.command("average")(average.average)
app.command("merge")(merge.merge)
app.command("list")(listing.list_parts)
app.command("new")(new.new)
app.command("demo")(demo.demo)
app.command("doctor")(doctor.doctor)
for _command in app.registered_commands:
    describe(_command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_version, is_eager=True),
) -> None:
    """Train, evaluate, use and explain sequence-to-sequence models."""


def main() -> None:
    """Entry point. Exit status: 0 on success, 1 for errors that the user can fix, 2 for wrong usage, 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # weft writes UTF-8, whatever the locale is
            stream.reconfigure(encoding="utf-8")
    with rarely():
        status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python would try again at exit, and fail with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = status or _fail(f"error: standard output: {error.strerror}", 1)
    if threading.active_count() == 1:
        # Once torch is imported, taking the interpreter apart would take a quarter of a second.
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit status."""
    try:
        app(spread_sets(arguments), standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Interrupted as error:
        return _fail(str(error), 130)
    except WeftError as error:
        return _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader of our output is gone. Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        if isinstance(error, PermissionError) and error.filename:
            return _fail(f"error: {where}{denied(error.filename, 'read or write it')}", 1)
        return _fail(f"error: {where}{error.strerror or error}", 1)
    except MemoryError:
        return _fail(NO_MEMORY, 1)
    except RuntimeError as error:
        # torch words this differently for GPUs and for the CPU.
        if not any(words in str(error) for words in ("out of memory", "can't allocate memory")):
            raise
        return _fail(NO_MEMORY, 1)
    return 0


def spread_sets(arguments: list[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`."""
    spread: list[str] = []
    following = False
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        # No key contains a comma: such an argument is an entry of `weft compare`.
        setting = equals and "." in key and "," not in key and not argument.startswith("-")
        if following and setting and spread[-2:-1] == ["--set"]:
            spread.append("--set")
        following = argument == "--set" or (following and not argument.startswith("-"))
        spread.append(argument)
    return spread


def _fail(message: str, status: int) -> int:
    print(f"weft: {message}", file=sys.stderr)
    return status
