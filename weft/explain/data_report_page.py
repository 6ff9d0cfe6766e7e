"""The pages of `weft data check` and `weft data clean`: facts, and each finding with examples. They need no network."""

from collections.abc import Sequence
from html import escape
from typing import Any

from weft.data.cleaning.filters import NAMES
from weft.explain.html_page import Section, meter, notes, static_page

Report = dict[str, Any]


def check_page(report: Report) -> str:
    """The page of a check."""
    facts = [[name, ""] for each in report["data"] for name in [each["name"]]]
    facts += [[f"{count:,} entries left out", reason] for each in report["data"] for reason, count in each["left_out"].items()]
    facts += [[f"{report['pairs']:,} pairs", f"{report['found']:,} of them with a finding"]]
    for side, languages, words in zip(("source", "target"), report["languages"], report["words"], strict=True):
        facts.append([f"{side}: language", _languages(languages["labels"], languages["given"])])
        facts.append(
            [f"{side}: words of a text", ", ".join(f"{percent} %: at most {count}" for percent, count in words.items())]
        )
    body = _table(facts)
    if stretches := report["misaligned_stretches"]:
        listed = ", ".join(f"{first:,} to {last:,}" for first, last in stretches)
        body += notes([f"Pairs that seem to be misaligned one after the other: {listed}. A line may be missing on one side."])
    sections = [Section("", "what the data is", body), *_findings(report)]
    return static_page(sections, "weft data check")


def clean_page(report: Report) -> str:
    """The page of a cleaning."""
    facts = [[name, ""] for name in report["data"]]
    facts += [
        [f"{report['pairs']:,} pairs", f"{report['kept']:,} kept in {report['out']}, {report['repaired']:,} of them repaired"]
    ]
    for side, shares in zip(("source", "target"), report["languages"], strict=True):
        facts.append([f"{side}: language", _languages(shares)])
    body = _table(facts) + notes(
        ["A pair counts for the first filter that finds it. A YAML file for --choices turns filters off."]
    )
    return static_page([Section("", "what was kept", body), *_findings(report)], "weft data clean")


def _findings(report: Report) -> list[Section]:
    """A section for each filter that found pairs, in the order of the filters."""
    sections = []
    for name, about in NAMES.items():
        if count := report["counts"].get(name, 0):
            share = count / max(1, report["pairs"])
            body = f"<p>{meter(share)} {count:,} pairs, {100 * share:.2f} %: {escape(about)}.</p>\n"
            sections.append(Section(f"filter {name}", name.replace("_", " "), body + _table(report["examples"].get(name, []))))
    return sections


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = ("".join(f'<td dir="auto">{escape(cell)}</td>' for cell in row) for row in rows)
    return "<table>\n" + "".join(f"<tr>{line}</tr>\n" for line in lines) + "</table>\n"


def _languages(shares: dict[str, float], given: str | None = None) -> str:
    found = ", ".join(f"{label} {100 * share:.0f} %" for label, share in shares.items()) or "unknown"
    return f"{found} (given: {given})" if given else found
