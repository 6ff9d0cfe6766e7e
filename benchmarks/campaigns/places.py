"""Strange places: clocks that jump, locales, homes, names, file systems, permissions and limits, and seven commands in each.

    python benchmarks/campaigns/places.py --out DIR                    # resumable: repeat the command; needs root and Linux
    python benchmarks/campaigns/places.py --out DIR --only 'clock*'

In each place a run is trained, resumed, translates, is evaluated, explained, exported and served. Each command has to give what
it gives in an ordinary place (the bytes of the weights, of the translation, of the export; the scores), or one clear refusal
where a place does not allow more. Commands are forked from a process that has loaded torch and weft, started with the locale of
the place. The clock and a folder without upper case are simulated by places_shim.c, since the clock of a machine belongs to all
its programs and few kernels have such file systems; everything else is real: mounts in a namespace of their own, users, limits,
a memory cgroup.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fnmatch
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = ("train", "resume", "translate", "evaluate", "explain", "export", "serve")
NOBODY = 65534
STRANGER = 54321
"""A user without an entry in the list of users."""

SETTINGS = {
    "data.vocabulary": "45",
    "model.dim": "32",
    "model.heads": "2",
    "model.feedforward": "64",
    "model.encoder_layers": "1",
    "model.decoder_layers": "1",
    "train.batch_tokens": "300",
    "train.precision": "float32",
    "train.validate_every": "3",
    "train.save_every": "3",
    "train.device": "cpu",
    "train.threads": "1",
    "train.tensorboard": "false",
    "train.seed": "3",
}
TEXT = "le chat noir"
PAIRS = [
    (f"le {a} {b}", f"the {d} {c}")
    for a, c in (("chat", "cat"), ("chien", "dog"), ("café", "café"), ("kızıl", "İri"))
    for b, d in (("noir", "black"), ("blanc", "white"), ("rouge", "red"), ("vert", "green"), ("bleu", "blue"))
] * 3


def clone_flags(*names: str) -> None:
    """New namespaces of this process."""
    known = {"mount": 0x00020000}
    if ctypes.CDLL(None, use_errno=True).unshare(sum(known[name] for name in names)):
        raise OSError(ctypes.get_errno(), "unshare")


def mount(*arguments: str) -> None:
    """Mounts in a namespace of this process only."""
    clone_flags("mount")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", *arguments], check=True)


def become(user: int) -> None:
    """Goes on as another user, who sees nothing in the home of root but the interpreter, if that is there."""
    home, interpreter = Path("/root"), Path(os.path.realpath(sys.executable))
    if home in interpreter.parents:
        kept = home / interpreter.relative_to(home).parts[0]
        aside = Path(tempfile.mkdtemp())
        mount("--bind", str(kept), str(aside))
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", str(home)], check=True)
        kept.mkdir()
        subprocess.run(["mount", "--bind", str(aside), str(kept)], check=True)
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


def in_cgroup(limit: int) -> None:
    """Limits the memory of this process, and of those that it starts."""
    for root, file, members in (
        ("/sys/fs/cgroup", "memory.max", "cgroup.procs"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "cgroup.procs"),
    ):
        group = Path(root) / f"weft-places-{os.getpid()}"
        try:
            group.mkdir()
            (group / file).write_text(str(limit))
            (group / members).write_text(str(os.getpid()))
            return
        except OSError:
            if group.is_dir():
                group.rmdir()
    raise OSError("there is no memory cgroup")


def environment(**values: str | None) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        for name, value in values.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value.replace("{}", str(folder)))
        time.tzset()

    return enter


def shim(name: str, value: Any) -> None:
    getattr(ctypes.CDLL(None), name)(value)


def limit(kind: int, value: int) -> Callable[[Path], None]:
    return lambda folder: resource.setrlimit(kind, (value, value))


def closed_home(folder: Path) -> None:
    """A home that cannot be written, and no other place for a cache."""
    (folder / "home").mkdir(exist_ok=True)
    os.environ.pop("XDG_CACHE_HOME", None)
    os.environ["HOME"] = str(folder / "home")
    mount("-t", "tmpfs", "-o", "ro", "none", str(folder / "home"))


def full_home(folder: Path) -> None:
    (folder / "home").mkdir(exist_ok=True)
    os.environ.pop("XDG_CACHE_HOME", None)
    os.environ["HOME"] = str(folder / "home")
    mount("-t", "tmpfs", "-o", "size=4k", "none", str(folder / "home"))
    (folder / "home/full").write_bytes(b"x" * 4096)


def no_home(folder: Path) -> None:
    for name in ("HOME", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)


def stranger(folder: Path) -> None:
    """Neither a home nor a name."""
    no_home(folder)
    become(STRANGER)


def another(folder: Path) -> None:
    """A user who may read everything and write into its home."""
    os.environ["XDG_CACHE_HOME"] = str(folder / "home/cache")
    os.environ["HOME"] = str(folder / "home")
    become(NOBODY)


def gone(folder: Path) -> None:
    (folder / "away").mkdir()
    os.chdir(folder / "away")
    (folder / "away").rmdir()


def locale_of_c(name: str) -> Callable[[Path], None]:
    """The locale of C and C++ code, with its decimal commas and its letters."""

    def enter(folder: Path) -> None:
        import locale

        locale.setlocale(locale.LC_ALL, name)

    return enter


def both(*enters: Callable[[Path], None]) -> Callable[[Path], None]:
    def enter(folder: Path) -> None:
        for each in enters:
            each(folder)

    return enter


@dataclass(frozen=True)
class Place:
    """enter: called in the process of a command, with its folder · zygote: how Python is started · name: that of the folder
    refused: the commands that may be refused · owner, mode: of the folder and everything in it · options: added to commands.
    """

    enter: Callable[[Path], None] = lambda folder: None
    zygote: str = "plain"
    name: str | bytes = "place"
    refused: tuple[str, ...] = ()
    owner: int = 0
    mode: int = 0
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()


WRITES = ("train", "resume")
CACHE = environment(XDG_CACHE_HOME="{}/cache")
WORKERS = (("translate", ("--set=decode.workers=2",)),)
TIMED = (("train", ("--time", "6s")),)


def places() -> dict[str, Place]:
    """The places, by name."""
    clocks = {1: "forwards a day at every look", 2: "backwards a day at every look", 3: "1970", 4: "2130"}
    names: dict[str, str | bytes] = {
        "spaces": "a place  with spaces ",
        "a line end": "one\ntwo",
        "quotes": 'it\'s "here" `$HOME` \\',
        "letters": "Größe İı 東京 🙂",
        "255 bytes": "n" * 255,
        "255 bytes of letters": "é" * 127 + "x",
        "a dash": "-rf",
        "brackets": "[a]{b}*?#@1",
    }
    return {
        "plain": Place(),
        **{
            f"clock: {what}": Place(both(CACHE, lambda folder, mode=mode: shim("jump_clock", mode)))
            for mode, what in clocks.items()
        },
        "clock: with a time budget": Place(both(CACHE, lambda folder: shim("jump_clock", 1)), options=TIMED),
        **{
            f"zone: {zone}": Place(both(CACHE, environment(TZ=zone)))
            for zone in ("Pacific/Kiritimati", "America/St_Johns", "no/zone")
        },
        "locale: LC_ALL=C, PYTHONUTF8=0": Place(CACHE, "ascii", "Größe".encode(), refused=COMMANDS),
        "locale: LC_ALL=C, PYTHONUTF8=0, ASCII paths": Place(CACHE, "ascii"),
        "locale: tr_TR (ISO-8859-9)": Place(both(CACHE, locale_of_c("tr_TR")), "turkish", "Größe İı", refused=COMMANDS),
        "locale: de_DE, decimal commas in C": Place(both(CACHE, locale_of_c("de_DE.UTF-8")), "german"),
        "home: none": Place(no_home),
        "home: none, a user without a name": Place(stranger, owner=STRANGER, refused=WRITES),
        "home: read-only": Place(closed_home, refused=WRITES),
        "home: full": Place(full_home, refused=WRITES),
        "folder: deleted": Place(both(CACHE, gone), refused=WRITES),
        **{f"name: {what}": Place(CACHE, name=name) for what, name in names.items()},
        "name: no UTF-8": Place(CACHE, name=b"\xff\xfe", refused=COMMANDS),
        "name: commas": Place(CACHE, name="a,b=c", refused=("train", "resume", "evaluate")),
        "file system: no upper case (simulated)": Place(
            both(CACHE, lambda folder: shim("fold_case", os.fsencode(folder))), name="Place"
        ),
        **{f"umask {mask:03o}": Place(both(CACHE, lambda folder, mask=mask: os.umask(mask) and None)) for mask in (0, 0o077)},
        "umask 777, root": Place(both(CACHE, lambda folder: os.umask(0o777) and None)),
        "umask 777, another user": Place(
            both(CACHE, lambda folder: os.umask(0o777) and None, lambda folder: become(NOBODY)),
            owner=NOBODY,
            refused=("train", "translate", "explain", "export", "resume", "serve"),
        ),
        "user: reads what root owns": Place(another, refused=WRITES, mode=0o755),
        "user: must not read": Place(another, refused=COMMANDS, mode=0o700),
        "user: trains beside": Place(another, owner=NOBODY),
        "no /dev/shm": Place(
            both(CACHE, lambda folder: mount("-t", "tmpfs", "-o", "ro,size=4k", "none", "/dev/shm")), options=WORKERS
        ),
        "64 descriptors": Place(both(CACHE, limit(resource.RLIMIT_NOFILE, 64)), options=WORKERS),
        "2 GB of memory (cgroup)": Place(both(CACHE, lambda folder: in_cgroup(2 << 30))),
    }


ZYGOTES: dict[str, dict[str, str]] = {
    "plain": {},
    "ascii": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "turkish": {"LC_ALL": "tr_TR", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "german": {"LC_ALL": "de_DE.UTF-8"},
}


class Zygote:
    """Runs the commands of places in processes that it forks."""

    def __init__(self, out: Path) -> None:
        self.out = out
        lines = (out / "results.jsonl").read_text("utf-8").splitlines() if (out / "results.jsonl").exists() else []
        self.done = {(line["place"], line["command"]): line for line in map(json.loads, lines)}
        self.expected: dict[str, Any] = (
            json.loads((out / "expected.json").read_text()) if (out / "expected.json").exists() else {}
        )

    def visit(self, name: str, place: Place) -> None:
        """Runs the commands that have not been run in this place."""
        if all((name, command) in self.done for command in COMMANDS):
            return
        outer = self.out / "places" / hashlib.sha256(name.encode()).hexdigest()[:8]
        shutil.rmtree(outer, ignore_errors=True)
        outer.mkdir(parents=True)
        folder = outer / os.fsdecode(place.name)
        folder.mkdir()
        for file, pairs in (("train.tsv", PAIRS), ("valid.tsv", PAIRS[:8])):
            (folder / file).write_text("".join(f"{a}\t{b}\n" for a, b in pairs), "utf-8")
        (folder / "in.txt").write_text(f"{TEXT}\nle café\n", "utf-8")
        (folder / "home").mkdir(exist_ok=True) if place.enter is another else None
        if (self.out / "base").exists():
            shutil.copytree(self.out / "base", folder / "run")
        self._give(folder, place)
        for command in COMMANDS:
            if (name, command) in self.done:
                continue
            began = time.monotonic()
            verdict = self.verdict(name, command, place, folder, outer)
            line = {"place": name, "command": command, "verdict": verdict}
            self.done[name, command] = line
            with open(self.out / "results.jsonl", "a", encoding="utf-8") as out:
                out.write(json.dumps(line) + "\n")
            print(f"{name} · {command}: {verdict} ({time.monotonic() - began:.1f} s)", flush=True)
        if name == "plain":
            if not (self.out / "base").exists():
                shutil.copytree(folder / "new", self.out / "base")
            (self.out / "expected.json").write_text(json.dumps(self.expected))
        shutil.rmtree(outer, ignore_errors=True)

    def _give(self, folder: Path, place: Place) -> None:
        """Gives the folder to its owner."""
        if os.geteuid():
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, place.owner, place.owner)
            if place.mode:
                path.chmod(place.mode if path.is_dir() else place.mode & 0o666)
        if place.enter is another:
            folder.chmod(0o755)
            os.chown(folder / "home", NOBODY, NOBODY)
            (folder / "home").chmod(0o755)

    def verdict(self, name: str, command: str, place: Place, folder: Path, outer: Path) -> str:
        """The end of a command: "same", "refused: …" or "FAILED: …"."""
        run = folder / ("new" if command in WRITES or not (folder / "run").exists() else "run")
        if command == "resume" and not run.exists():
            run = folder / "run"
        to = folder / "home" if place.enter is another else folder
        files = {"run": run, "folder": folder, "to": to}
        call = arguments(command, **files)
        call[1:1] = dict(place.options).get(command, ())
        code, out, err = self.serve(call, place, folder, outer) if command == "serve" else self.call(call, place, folder, outer)
        if "Traceback" in err or code not in (0, 1, 2):
            return f"FAILED: status {code}: {err.strip()[-400:]}"
        if code:
            said = [line for line in err.splitlines() if "weft: error:" in line or "Invalid value for" in line]
            if len(said) != 1:
                return f"FAILED: {len(said)} messages: {err.strip()[-400:]}"
            kind = "refused" if command in place.refused else "FAILED: refused"
            return f"{kind}: {said[0][:300]}"
        try:
            found = found_by(command, out, **files)
        except Exception as error:
            return f"FAILED: {type(error).__name__}: {error}; {err.strip()[-300:]}"
        if command in WRITES and place.options == TIMED:
            ended = json.loads(last_line(run / "log.jsonl"))
            return "same" if command == "resume" or ended["stopped"] == "time" else f"FAILED: {ended}"
        expected = self.expected.setdefault(command, found) if name == "plain" else self.expected[command]
        return "same" if found == expected else f"FAILED: {str(found)[:200]} instead of {str(expected)[:200]}"

    def start(self, call: list[str], place: Place, folder: Path, outer: Path) -> int:
        """A process that enters the place and runs a command there."""
        streams = [os.open(outer / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC) for name in ("stdout", "stderr")]
        child = os.fork()
        if child:
            for stream in streams:
                os.close(stream)
            return child
        status = 70
        try:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(streams[0], 1)
            os.dup2(streams[1], 2)
            if sys.stdout is not sys.__stdout__:  # in a test
                sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(number, "w", closefd=False)) for number in (1, 2))
            os.chdir(folder)
            os.setsid()
            place.enter(folder)
            from weft import cli

            status = cli.run(call)
        except BaseException:
            traceback.print_exc()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(status)

    def _ended(self, child: int, outer: Path) -> tuple[int, str, str]:
        began = time.monotonic()
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                break
            if time.monotonic() - began > 300:
                os.killpg(child, signal.SIGKILL)
            time.sleep(0.05)
        out, err = ((outer / name).read_bytes().decode("utf-8", "replace") for name in ("stdout", "stderr"))
        return os.waitstatus_to_exitcode(status), out, err

    def call(self, call: list[str], place: Place, folder: Path, outer: Path) -> tuple[int, str, str]:
        return self._ended(self.start(call, place, folder, outer), outer)

    def serve(self, call: list[str], place: Place, folder: Path, outer: Path) -> tuple[int, str, str]:
        """The answer of a server, which is then stopped."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
        child = self.start([*call, "--port", str(port)], place, folder, outer)
        body = json.dumps({"text": TEXT}).encode()
        answer = ""
        for _ in range(600):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return self._ended(child, outer)
            try:
                request = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/translate", body, {"Content-Type": "application/json"}
                )
                with urllib.request.urlopen(request, timeout=30) as response:
                    answer = json.loads(response.read())["translations"][0]["text"]
                break
            except urllib.error.HTTPError as error:
                answer = f"status {error.code}"
                break
            except OSError:
                time.sleep(0.1)
        os.kill(child, signal.SIGTERM)
        code, _, err = self._ended(child, outer)
        return 0 if code in (0, 143, -15) else code, answer, err


def arguments(command: str, run: Path, folder: Path, to: Path) -> list[str]:
    """The command line of a command."""
    train, valid, given = (str(folder / name) for name in ("train.tsv", "valid.tsv", "in.txt"))
    sets = ["--set", *(f"{name}={value}" for name, value in SETTINGS.items())]
    cpu = ["--device", "cpu", "--no-fast"]
    return {
        "train": [
            "train",
            "transformer-portable",
            f"--data={train}",
            f"--valid={valid}",
            f"--out={run}",
            *sets,
            "train.steps=3",
        ],
        "resume": ["train", f"--resume={run}", f"--data={train}", f"--valid={valid}", "--set", "train.steps=6"],
        "translate": ["translate", *cpu[:2], "-o", str(to / "out.txt"), "--", str(run), given],
        "evaluate": ["evaluate", f"--data={valid}", "--json", *cpu[:2], "--", str(run)],
        "explain": ["explain", "-o", str(to / "page.html"), *cpu[:2], "--", str(run), TEXT],
        "export": ["export", "--to", "marian", f"--out={to / 'exported'}", "--", str(run)],
        "serve": ["serve", *cpu, str(run) if not str(run).startswith("-") else f"./{run}"],
    }[command]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def last_line(file: Path) -> str:
    return file.read_text("utf-8").splitlines()[-1]


def found_by(command: str, out: str, run: Path, folder: Path, to: Path) -> Any:
    """The result of a command, which must be the same everywhere."""
    if command in WRITES:
        return digest((run / "model.safetensors").read_bytes())
    if command == "translate":
        return digest((to / "out.txt").read_bytes())
    if command == "evaluate":
        return {
            name: value for name, value in json.loads(out).items() if isinstance(value, int | float) and "second" not in name
        }
    if command == "explain":
        page = (to / "page.html").read_text("utf-8")
        return page.count(TEXT.split()[1]) > 0 and page.rstrip().endswith("</html>")
    if command == "export":
        files = (to / "exported",) if (to / "exported").is_file() else sorted((to / "exported").rglob("*"))
        return {
            file.name: digest(file.read_bytes()) for file in files if file.suffix in (".npz", ".spm", ".yml") and file.is_file()
        }
    return out


def locales(out: Path) -> Path:
    """The locales of the places, made for them alone."""
    folder = out / "locales"
    folder.mkdir(exist_ok=True)
    for name, charset, full in (("tr_TR", "ISO-8859-9", "tr_TR"), ("de_DE", "UTF-8", "de_DE.UTF-8")):
        if not (folder / full).exists():
            subprocess.run(["localedef", "-c", "-i", name, "-f", charset, str(folder / full)], check=False, capture_output=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the places and of results.jsonl")
    parser.add_argument("--only", default="*", help="pattern of the names of places; default: all")
    parser.add_argument("--zygote", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    out = given.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    out.chmod(0o755)
    if given.zygote:
        import torch

        import weft.cli.train
        import weft.runs.run_evaluation
        import weft.training.train_run  # noqa: F401

        torch.set_num_threads(1)
        sys.stdout.reconfigure(errors="backslashreplace")
        zygote = Zygote(out)
        for name, place in places().items():
            if place.zygote == given.zygote and (
                fnmatch.fnmatch(name, given.only) or (name == "plain" and not zygote.expected)
            ):
                zygote.visit(name, place)
        return
    if os.geteuid():
        sys.exit("mounts, users and limits need root")
    library = out / "shim.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", library, Path(__file__).with_name("places_shim.c"), "-ldl"], check=True
    )
    shared = {**os.environ, "LD_PRELOAD": str(library), "LOCPATH": str(locales(out)), "XDG_CACHE_HOME": str(out / "cache")}
    for name, values in ZYGOTES.items():
        environ = {key: value for key, value in shared.items() if name in ("turkish", "german") or key != "LOCPATH"}
        subprocess.run(
            [sys.executable, __file__, f"--out={out}", f"--only={given.only}", f"--zygote={name}"], env=environ | values
        )
    report(Zygote(out))


def report(zygote: Zygote) -> None:
    """Prints the counts; exits with 1 if a command failed."""
    verdicts = Counter(line["verdict"].partition(":")[0] for line in zygote.done.values())
    failed = [line for line in zygote.done.values() if line["verdict"].startswith("FAILED")]
    for line in failed:
        print(f"{line['place']} · {line['command']}: {line['verdict']}")
    print(f"{len(zygote.done)} commands in {len({place for place, _ in zygote.done})} places: {dict(verdicts)}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
