"""Starts pairs of commands on one folder at random offsets, on one host or on two that share a disk, and checks what is left.

    python benchmarks/campaigns/races.py --out races            # 300 pairs; the same call continues
    python benchmarks/campaigns/races.py --out races --pair 17  # one of them again

A second host is what the kernel can pretend: other mounts, another name, and numbers of processes of its own, so both commands
believe to be process 1. Each command must end well or refuse in one clear message. Then every file under its final name is
whole; training continues from the folder with the same bits as without the race; results are those of an undisturbed command;
nothing temporary is left. A line of JSON per pair is appended to OUT/pairs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from forked_commands import Command, Ended, import_everything, preloaded
from kill_cases import BASES, COMMANDS, CPU, Work
from kills import TEMPORARY, Campaign, Found, collect, differences, digests, half_written

IN_RUN = ("resume", "average", "translate", "evaluate", "serve", "shortlist", "adapt", "pack run", "average one", "explain")
"""Commands that read or change one trained run."""

CHANGES = ("resume", "average", "serve", "shortlist", "adapt")
"""Those of them of which a pair has at least one."""

SAME_OUTPUT = ("export onnx", "merge", "unpack", "average into", "distill", "clean", "import", "pack", "translate into")
"""Commands that are started twice, with the same output."""

NEW = ("train", "resume", "translate", "evaluate", "average")
"""Commands that meet a training that has just been started, in its folder."""

REFUSALS = {
    "in use": r"the run folder is in use by process \d+ on \S+; wait or stop it|another process (is|has)",
    "not empty": r"the folder is not empty, and weft does not overwrite|it exists already, and weft does not overwrite",
    "no run yet": r"there is no such run folder|it has no config.yaml|has not made its first step",
    "no weights yet": r"there is no checkpoint|there is no model.safetensors|no weights",
}
"""Patterns of refusals, by their reason."""

REQUEST = {"text": "the red dog sees a cat"}


class Races(Campaign):
    """The pairs of a folder. Runs and folders are those of the interruptions."""

    only: Sequence[str] = ()

    def arguments(self, name: str) -> list[str]:
        """The words of a command line."""
        work, run = self.places.work, str(self.places.work / "run")
        lines = self.places.text("lines.txt", 40, 34)
        known = {
            "resume": ["train", "--resume", run, "--set", "train.steps=12"],
            "continue": ["train", "--resume", run, "--set", "train.steps=14"],
            "translate": ["translate", run, lines, *CPU],
            "translate into": ["translate", str(self.places.bases / "base"), lines, "-o", str(work / "out.txt"), *CPU],
            "evaluate": ["evaluate", run, "--data", self.places.pairs("scored", 20, 61), "--json", *CPU],
            "serve": ["serve", run, "--port", "0", "--no-fast", "--timeout", "300", *CPU],
            "pack run": ["pack", run, "--out", str(work / "packed.weft")],
            "average one": ["average", run, "--last", "1", "--out", str(work / "one")],
            "explain": ["explain", run, "the red dog", "-o", str(work / "page.html"), *CPU],
        }
        if name == "train":
            return [*self.places.training(self.trainings["base"]).arguments]
        return known[name] if name in known else [*self.work(name).arguments]

    def draw(self, number: int) -> tuple[str, str, random.Random]:
        """The two commands of a pair."""
        draw = random.Random(f"{self.seed} race {number}")
        if self.only:
            return self.only[0], self.only[1], draw
        kind = number % 6
        if kind == 5:
            return "train", draw.choice(NEW), draw
        if kind in (2, 4):
            name = SAME_OUTPUT[number // 6 % len(SAME_OUTPUT)]
            return name, name, draw
        pair = [draw.choice(CHANGES), draw.choice(IN_RUN)]
        draw.shuffle(pair)
        return pair[0], pair[1], draw

    def pair(self, number: int) -> dict[str, Any]:
        """Starts two commands and returns what was found."""
        first, second, draw = self.draw(number)
        found: dict[str, Any] = {"pair": number, "first": first, "second": second, "hosts": 1 + draw.randrange(2)}
        self._fresh_run(first)
        found["offset"] = round(draw.random() * self._seconds(first, second), 3)
        commands: list[Command] = []
        for place, name in enumerate((first, second)):
            if place:
                time.sleep(found["offset"])
            host = f"host-{place}" if found["hosts"] == 2 else ""
            commands.append(self._start(self.arguments(name), f"race-{place}", host))
        names = (first, second)
        failures = []
        if "serve" in names:
            failures += self._serve(commands, names, found)
        ends = [command.wait() for command in commands]
        found["ends"] = [self._end(end) for end in ends]
        for name, end, how in zip(names, ends, found["ends"], strict=True):
            if how == "unclear":
                failures.append(f"{name} ended with {end.status}: {end.said.strip()[-500:]}")
            elif how == "done" and name == "translate" and len(end.said.strip().splitlines()) != 40:
                failures.append(f"{name} said {end.said.strip()[-300:]}")
        if not any(how == "done" for how in found["ends"]):
            failures.append("neither command has done its work")
        failures += [f"after the race: {each}" for each in half_written(self.places.work)]
        failures += self._left(names)
        return {**found, "failures": failures}

    def _start(self, arguments: list[str], said: str, host: str) -> Command:
        environment = {"XDG_CACHE_HOME": str(self.places.work / "home"), "TMPDIR": str(self.places.out)}
        place = self.places.out / "said" / said
        return Command(arguments, folder=self.places.out, said=place, host=host, environment=environment)

    def _fresh_run(self, first: str) -> None:
        """Makes the folder as it is before the commands."""
        base = "base" if first in IN_RUN else self.work(first).base if first in COMMANDS else ""
        self.fresh(Work([], base))

    def _seconds(self, first: str, second: str) -> float:
        """The time in which the second command may begin: mostly while the first one works."""
        return 1.5 * max(self.times.get(name, 0.5) for name in (first, second))

    @property
    def times(self) -> dict[str, float]:
        """Usual wall-clock times of commands, as far as they differ much from half a second."""
        return {"train": 2.0, "resume": 2.0, "adapt": 2.0, "serve": 1.5, "shortlist": 0.3, "average": 0.3}

    def _end(self, end: Ended) -> str:
        """How a command has ended: it did its work, it refused for a reason, or unclear."""
        if "Traceback" in end.said or "Exception ignored" in end.said:
            return "unclear"
        if end.status in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
            return "done"
        message = end.said.partition("weft: error: ")[2]
        return next((reason for reason, words in REFUSALS.items() if re.search(words, message)), "unclear")

    def _serve(self, commands: list[Command], names: tuple[str, str], found: dict[str, Any]) -> Iterator[str]:
        """Asks the server and lets it reload while the other command works. Yields what is wrong with its answers."""
        servers = [command for command, name in zip(commands, names, strict=True) if name == "serve"]
        answers: Counter[str] = Counter()
        for server in servers:
            address = self._address(server)
            for turn in range(4):
                if not address:
                    break
                answers[self._ask(address)] += 1
                if turn < 3:
                    server.send(signal.SIGHUP)
                    time.sleep(0.2)
            server.send(signal.SIGTERM)
        found["answers"] = sum(answers.values())
        yield from (answer for answer in answers if answer.startswith("failed"))

    def _address(self, server: Command) -> str:
        """The address at which a server answers, once it does; empty if it has ended."""
        for _ in range(600):
            said = server.said.read_text("utf-8") if server.said.exists() else ""
            if address := re.search(r"http://127\.0\.0\.1:\d+", said):
                return address[0]
            if "weft: error: " in said or "Traceback" in said:
                return ""
            time.sleep(0.05)
        return ""

    def _ask(self, address: str) -> str:
        data = json.dumps(REQUEST).encode()
        request = urllib.request.Request(f"{address}/v1/translate", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                return str(answer.read()[:1000], "utf-8")
        except OSError as error:
            return f"failed: {error}"

    def _left(self, names: tuple[str, str]) -> Iterator[str]:
        """Restarts what can be restarted, and yields what is not as without the race."""
        first = names[0]
        if first in SAME_OUTPUT:
            expected = self.reference("translate" if first == "translate into" else first).digests
            yield from differences(expected, digests(self.places.work))
            return
        run = self.places.work / "run"
        twelve = (run / "checkpoints" / "step-00000012").exists()
        ended = self.run(self.arguments("continue"), "continue")
        if ended.status:
            yield f"training does not continue: {ended.said.strip()[-500:]}"
            return
        expected = self._continued(twelve)
        yield from (f"after more training: {each}" for each in differences(expected, self._bits()))
        for path in run.rglob("*"):
            if any(mark in path.name for mark in TEMPORARY):
                yield f"after more training: {path.relative_to(run)} is left over"

    def _bits(self) -> dict[str, Any]:
        """The weights and the state of the optimiser after all training."""
        last = self.places.work / "run" / "checkpoints" / "step-00000014"
        return {name: found for name, found in digests(last).items() if name.endswith(".safetensors")}

    def _continued(self, twelve: bool) -> dict[str, Any]:
        """The bits of a training that nobody disturbed, to step 14, with a stop at step 12 or without."""
        name = f"continued {twelve}"
        if name not in self.continued:
            aside = self.places.out / "aside"
            self.places.work.rename(aside)
            self.fresh(self.places.command("average"))
            for step in ["resume"] * twelve + ["continue"]:
                self._must(self.arguments(step), "prepare")
            self.continued[name] = self._bits()
            shutil.rmtree(self.places.work)
            aside.rename(self.places.work)
        return self.continued[name]

    @property
    def continued(self) -> dict[str, dict[str, Any]]:
        return self.__dict__.setdefault("_kept", {})


def summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts of pairs, of their ends and of the failed ones."""
    return {
        "pairs": len(pairs),
        "on two hosts": sum(pair["hosts"] == 2 for pair in pairs),
        "kinds": len({tuple(sorted((pair["first"], pair["second"]))) for pair in pairs}),
        "ends": dict(Counter(end for pair in pairs for end in pair["ends"])),
        "answers of servers": sum(pair.get("answers", 0) for pair in pairs),
        "failed": sum(bool(pair["failures"]) for pair in pairs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for everything; the same one continues")
    parser.add_argument("--pairs", type=int, default=300, help="number of pairs (300)")
    parser.add_argument("--minutes", type=float, default=60, help="after this time no further pair begins (60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", metavar="A,B", help="one pair of commands, such as resume,average")
    parser.add_argument("--pair", type=int, help="only this pair, in detail")
    parser.add_argument("--failed", action="store_true", help="first repeat the pairs that have failed")
    options = parser.parse_args()
    out: Path = options.out.absolute()
    preloaded(out)
    import_everything(out)
    races = Races(out, options.seed)
    races.only = [name for name in options.only.split(",") if name]
    races.prepare(["base"] if races.only else BASES)
    if options.pair is not None:
        print(json.dumps(races.pair(options.pair), indent=1))
        return

    def enough(found: list[Found]) -> bool:
        return len(found) >= options.pairs

    done = collect(out / "pairs.jsonl", "pair", enough, options.minutes, races.pair, again=options.failed)
    print(json.dumps(summary(done), indent=1))


if __name__ == "__main__":
    main()
