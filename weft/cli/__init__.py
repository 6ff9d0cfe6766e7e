"""The command line: one file per command. This one puts them together and turns errors into messages."""

import signal
import threading

# Ctrl-C while the modules below are imported ends the process without a traceback.
_EARLY = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _EARLY:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import atexit
import io
import os
import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from weft import __version__
from weft.cli.options import Command, Group, OutputClosed, examples
from weft.errors import Interrupted, WeftError
from weft.file_access import denied
from weft.garbage_collection import collect_rarely
from weft.torch_startup import defer_compiler, defer_parts

if _EARLY:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NO_MEMORY = "error: out of memory; lower train.batch_tokens or, for decoding, decode.batch_tokens and decode.max_length"

COMMANDS = {
    "train": "train:train",
    "translate": "predict:predict",
    "predict": "predict:predict",
    "adapt": "adapt:adapt",
    "serve": "serve:serve",
    "watch": "watch:watch",
    "evaluate": "evaluate:evaluate",
    "explain": "explain:explain",
    "align": "align_and_dictionary:align",
    "generate": "predict:generate",
    "compare": "bench_compare_doctor:compare",
    "search": "search:search",
    "bench": "bench_compare_doctor:bench",
    "distill": "distill_and_backtranslate:distill",
    "dictionary": "align_and_dictionary:dictionary",
    "phrases": "phrases:phrases",
    "vectors": "align_and_dictionary:vectors",
    "iterate": "distill_and_backtranslate:iterate",
    "backtranslate": "distill_and_backtranslate:backtranslate",
    "shortlist": "average_merge_shortlist:shortlist",
    "average": "average_merge_shortlist:average",
    "merge": "average_merge_shortlist:merge",
    "import": "import_and_export:import_model",
    "export": "import_and_export:export",
    "pack": "import_and_export:pack",
    "unpack": "import_and_export:unpack",
    "push": "import_and_export:push",
    "pull": "import_and_export:pull",
    "list": "list_and_new:list_parts",
    "new": "list_and_new:new",
    "demo": "demo:demo",
    "doctor": "bench_compare_doctor:doctor",
}
"""The module and the function of each command."""

GROUPS = {
    "data": {"check": "data:check", "clean": "data:clean"},
    "quality": {"data": "quality:data", "calibrate": "quality:calibrate"},
}
"""The same for commands with two words, by the first of them."""

HELP = {
    "data": "Check and clean parallel data before training.",
    "quality": "Make data for quality estimation, and calibrate what it learns.",
    "translate": "Translate a file, a text, or standard input line by line as it comes.",
}
"""Help texts of commands that share a function with another one."""


def make_app(names: Iterable[str] = (*COMMANDS, *GROUPS)) -> typer.Typer:
    """The program with these commands. Only their modules are imported."""
    app = _group("weft", "Train, evaluate, use and explain sequence-to-sequence models.")
    app.callback()(_main)
    for name in names:
        if name in GROUPS:
            group = _group(name, HELP[name])
            for second, place in GROUPS[name].items():
                _add_command(group, second, place, f"{name} {second}")
            app.add_typer(group)
        else:
            _add_command(app, name, COMMANDS[name], name)
    return app


def _group(name: str, text: str) -> typer.Typer:
    return typer.Typer(
        name=name,
        cls=Group,
        help=text,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _add_command(app: typer.Typer, name: str, place: str, whole: str) -> None:
    """Adds the command at a place, `module:function`. whole: all its words."""
    module, _, function = place.partition(":")
    command = getattr(import_module(f"weft.cli.{module}"), function)
    app.command(name, cls=Command, help=HELP.get(whole), epilog=examples(whole))(command)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"weft {__version__}")
        raise typer.Exit


def _main(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", callback=_version, is_eager=True),
) -> None:
    """Train, evaluate, use and explain sequence-to-sequence models."""


OWN_PROCESS: list[bool] = []
"""Not empty if this process was started for the command, so that its time begins with the process."""

USING = ("translate", "predict", "generate")
"""Commands that use a model and do not compile it, so that they can do with a part of torch."""


def main() -> None:
    """Entry point. Exit status: 0 on success, 1 for errors that the user can fix, 2 for wrong usage, 130 if interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # weft writes UTF-8, whatever the locale is
            stream.reconfigure(encoding="utf-8")
    OWN_PROCESS.append(True)
    if sys.argv[1:2] and sys.argv[1] in USING:
        defer_parts()
    elif sys.argv[1:2] == ["train"]:
        defer_compiler()
    with collect_rarely():
        status = run(sys.argv[1:])
        try:
            sys.stdout.flush()
        except OSError as error:
            # Python would try again at exit, and fail with a traceback.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            if not isinstance(error, BrokenPipeError):
                status = status or _fail(f"error: standard output: {error.strerror}", 1)
        if threading.active_count() == 1:
            # Once torch is imported, taking the interpreter apart would take a quarter of a second.
            atexit._run_exitfuncs()
            sys.stderr.flush()
            os._exit(status)
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Runs a command line and returns its exit status."""
    if foreign := [each for each in arguments if _not_unicode(each)]:
        return _fail(f"error: {foreign[0]!a}: {NOT_UNICODE}", 1)
    names = arguments[:1] if arguments and arguments[0] in (*COMMANDS, *GROUPS) else (*COMMANDS, *GROUPS)
    try:
        make_app(names)(spread_sets(arguments), standalone_mode=True)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except Interrupted as error:
        return _fail(str(error), 130)
    except WeftError as error:
        return _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except OutputClosed:
        # Nothing more can be written, not even at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not error.filename and _nowhere():
            return _fail("error: the current folder has been deleted; change to another one", 1)
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


NOT_UNICODE = (
    "this is not valid UTF-8, or Python reads arguments in the encoding of a locale that does not have these letters. Rename "
    "the file or folder, or set PYTHONUTF8=1"
)


def _not_unicode(text: str) -> bool:
    """Whether a text has bytes that Python could not read as letters. Configurations and safetensors cannot hold such paths."""
    return any("\udc80" <= letter <= "\udcff" for letter in text)


def _nowhere() -> bool:
    """Whether the current folder no longer exists."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


SECTIONS = ("data", "start", "model", "task", "train", "decode")
"""The sections of a configuration, which a setting may replace as a whole."""


SETS = ("--set", "--set-space")
"""Options that take settings, any number of them."""


def spread_sets(arguments: list[str]) -> list[str]:
    """`--set a=1 b=2` as `--set a=1 --set b=2`."""
    spread: list[str] = []
    following = ""
    for argument in arguments:
        key, equals, _ = argument.partition("=")
        # No key contains a comma: such an argument is an entry of `weft compare`.
        setting = equals and ("." in key or key in SECTIONS) and "," not in key and not argument.startswith("-")
        if following and setting and spread[-2:-1] == [following]:
            spread.append(following)
        following = argument if argument in SETS else following if not argument.startswith("-") else ""
        spread.append(argument)
    return spread


def _fail(message: str, status: int) -> int:
    print(f"weft: {message}", file=sys.stderr)
    return status
