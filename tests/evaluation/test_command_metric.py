"""Metrics that another program computes: what it reads, what it may write, and every way in which it can fail."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.tiny import Shell
from weft.errors import ConfigError, DataError
from weft.evaluation.command_metric import CommandMetric, command_of
from weft.evaluation.metrics import ExactMatch
from weft.evaluation.report import Baseline, evaluate
from weft.runs.run_evaluation import evaluate as evaluate_run

READ = "import json, sys\nrows = [json.loads(line) for line in sys.stdin.buffer]\n"
EXACT = f"{READ}for row in rows: print(json.dumps({{'score': float(row['output'] == row['reference'])}}))\n"
LAST = '{"name": "Equal", "signature": "equal|version:3", "higher_is_better": true, "score": %s}'

SOURCES, OUTPUTS, REFERENCES = ["ä", "b b", "c"], ["Ä", "B", "C"], ["Ä", "B B", "C"]


@pytest.fixture
def command(tmp_path: Path) -> Callable[[str], str]:
    def write(code: str) -> str:
        (tmp_path / "metric.py").write_text(code, encoding="utf-8")
        return shlex.join([sys.executable, str(tmp_path / "metric.py")])

    return write


def test_the_command_reads_source_output_and_references(command: Callable[[str], str], tmp_path: Path) -> None:
    code = f"{READ}open({str(tmp_path / 'seen')!r}, 'w').write(json.dumps(rows))\nfor row in rows: print('{{\"score\": 1}}')\n"
    CommandMetric(command(code), ["s"], several=True).count(["o"], ["eins\nzwei"])
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen == [{"source": "s", "output": "o", "reference": "eins", "references": ["eins", "zwei"]}]


def test_it_gives_what_the_same_metric_of_weft_gives(command: Callable[[str], str]) -> None:
    metric = CommandMetric(command(EXACT + f"print('{LAST % (2 / 3)}')"), SOURCES)
    given = {"system": "ours", "data": "test", "baseline": Baseline("theirs", REFERENCES), "samples": 50}
    ours, built_in = (evaluate(OUTPUTS, REFERENCES, metrics=[each], **given) for each in (metric, ExactMatch()))  # type: ignore[arg-type]
    found, expected = ours.document(), built_in.document()
    equal, exact = found["metrics"]["Equal"], expected["metrics"]["exact"]
    assert equal["signature"] == "equal|version:3" and equal["higher_is_better"]
    assert 100 * equal["value"] == pytest.approx(exact["value"])
    assert [100 * each for each in equal["ci"]] == pytest.approx(exact["ci"])
    delta, theirs = found["comparison"]["metrics"]["Equal"], expected["comparison"]["metrics"]["exact"]
    assert delta["p"] == theirs["p"] and 100 * delta["delta"] == pytest.approx(theirs["delta"])


def test_another_score_of_the_test_set_is_shown_and_told_apart(command: Callable[[str], str]) -> None:
    metric = CommandMetric(command(EXACT + f"print('{LAST % 0.5}')"), SOURCES)
    found = metric.score(metric.count(OUTPUTS, REFERENCES))
    assert found.value == 0.5 and found.signature.startswith("equal|version:3|") and "mean" in found.signature


def test_metrics_of_the_same_name_are_told_apart(command: Callable[[str], str]) -> None:
    metrics = [CommandMetric(command(EXACT), SOURCES) for _ in range(3)]
    name = metrics[0].name
    found = evaluate(OUTPUTS, REFERENCES, system="ours", data="test", metrics=metrics, samples=5)
    assert [*found.document()["metrics"]] == [name, f"{name} (2)", f"{name} (3)"]
    assert found.scores[0].signature == metrics[0].command


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (f"{READ}print('{{}}')\nsys.stderr.write('a\\nno model here\\n')\nsys.exit(3)", ["status 3", "no model here"]),
        ("import sys\nsys.exit(4)", ["status 4", "without a message"]),
        (f"{READ}print('{{\"score\": 1}}')", ["1 sentences, and there are 3"]),
        (EXACT + EXACT.removeprefix(READ), ["5 sentences, and there are 3"]),
        (f"{READ}print('{{\"score\": 1}}\\n' * 2 + '{LAST % 1}')", ["2 sentences, and there are 3"]),
        (f"{READ}print('loading')", ["line 1", "not a JSON object", "loading"]),
        (f"{READ}print('[1]')", ["not a JSON object"]),
        (f"{READ}print('{{\"score\": NaN}}\\n' * 3)", ["not a number"]),
        (f"{READ}print('{{\"score\": true}}\\n' * 3)", ["not a number"]),
        (f"{READ}print('{{\"value\": 1}}\\n' * 3)", ["no key score"]),
        (EXACT + "print('{\"name\": 7}')", ["the name in the last line", "must be text"]),
        ("import sys\nsys.stdout.buffer.write(b'\\xff')", ["not UTF-8"]),
    ],
)
def test_failures_say_what_the_command_did(command: Callable[[str], str], code: str, says: list[str]) -> None:
    metric = CommandMetric(command(code), SOURCES)
    with pytest.raises(DataError) as caught:
        metric.count(OUTPUTS, REFERENCES)
    assert all(each in str(caught.value) for each in [*says, "--metric command:"]), str(caught.value)


def test_a_command_that_hangs_is_stopped_with_what_it_has_started(command: Callable[[str], str]) -> None:
    hangs = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    with pytest.raises(DataError, match=r"within 0\.3 seconds; set --metric-timeout"):
        CommandMetric(command(hangs), SOURCES, timeout=0.3).count(OUTPUTS, REFERENCES)


@pytest.mark.parametrize(
    ("spelling", "says"),
    [
        ("comet", "metrics are added as command:"),
        ("command:", "there is no command"),
        ("command:no-such-program --x", "there is no program 'no-such-program'"),
        ("command:a 'b", "cannot be split"),
    ],
)
def test_a_command_is_checked_before_anything_runs(spelling: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        command_of(spelling)


def test_evaluating_a_run_by_a_command(
    weft: Shell,
    reverse_run: Path,
    tmp_path: Path,
    command: Callable[[str], str],
) -> None:
    (tmp_path / "test.tsv").write_text("a b c\tc b a\nb a\ta b\nd\ta\n", encoding="utf-8")
    test_pairs = str(tmp_path / "test.tsv")
    summary = json.dumps({"name": "Equal", "signature": "equal|version:3"})
    metric = f"command:{command(f'{EXACT}print({summary!r})')}"
    arguments = ["evaluate", reverse_run, "--data", test_pairs, "--samples", "20", "--metric", metric]
    found = json.loads(weft(*arguments, "--json"))["metrics"]
    assert found["Equal"]["signature"] == "equal|version:3"
    assert 100 * found["Equal"]["value"] == pytest.approx(found["exact"]["value"])
    shown = weft(*arguments)
    assert f"{found['Equal']['value']:.4f}" in shown and "Equal: equal|version:3" in shown
    again = evaluate_run(reverse_run, test_pairs, metric=[metric], device="cpu")
    assert not isinstance(again, dict) and again.scores[-1].value == found["Equal"]["value"]
    weft.fails(*arguments, "--metric-timeout", "0", says=["timeout of more than 0 seconds"])
    weft.fails("evaluate", reverse_run, "--data", test_pairs, "--metric", "comet", says=["metrics are added as command:"])
