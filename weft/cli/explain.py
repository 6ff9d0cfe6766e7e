"""`weft explain`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.options import BEAM, DECODE_SET, DEVICE, RUN, decode_options, runs
from weft.cli.output import opened, tell, warn
from weft.errors import ConfigError, DataError

if TYPE_CHECKING:
    from weft.attention.base import Use
    from weft.explain.explanation import Explanation
    from weft.explain.labels import LabelExplanation

PICTURES = (".png", ".svg", ".pdf")


What = StrEnum("What", ["cross", "encoder", "decoder"])


def explain(
    run: str = RUN,
    text: str = typer.Argument(None, help="The sentence to explain; or give --file."),
    target: str = typer.Option(None, "--target", help="Explain this translation instead, and where the model would differ."),
    file: Path = typer.Option(None, "--file", help="A file of sentences instead of one, or of documents as JSON lines."),
    targets: Path = typer.Option(None, "--targets", help="A file with a translation for each sentence."),
    against: list[str] = typer.Option([], "--against", help="Another run to show next to it. Repeatable.", metavar="RUN"),
    output: Path = typer.Option(
        Path("explain.html"), "-o", "--output", help="A page (.html), or a picture (.png, .svg, .pdf) of one attention."
    ),
    look: What = typer.Option(
        What.cross, "--look", help="For a picture: attention to the source, among source tokens, or among target tokens."
    ),
    layer: int = typer.Option(None, "--layer", help="For a picture: the layer, counted from 1; default: the mean of all."),
    head: str = typer.Option("mean", "--head", help="For a picture: a head, counted from 1, or mean, or max."),
    words: bool = typer.Option(False, "--words", help="For a picture: whole words instead of tokens."),
    influence: bool = typer.Option(False, "--influence", help="Also show the effect of removing each source token."),
    beam: int = BEAM,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Show how a sentence is translated: attention, the probability of each token, what the search dropped and why.

    Writes one page that needs no network, or one picture for a paper. Nothing is reranked. Of a classifier, the page shows the
    probabilities of labels and the weights of sentences and words.
    """
    suffix = output.suffix.lower()
    if suffix not in (".html", *PICTURES):
        raise ConfigError(f"{output}: the file name decides what is written; end it in .html, {', '.join(PICTURES)}")
    pairs = _pairs(text, target, file, targets)
    if suffix in PICTURES and (len(pairs) > 1 or against):
        raise ConfigError(f"{output}: a picture shows one sentence of one run; for more, write a page (-o page.html)")
    chosen = _head(head)
    options = decode_options(set, beam=beam)
    found, labels = _explanations([run, *against], pairs, device, influence or None, options)
    if labels:
        _write_labels(labels, output, mixed=bool(found), given=bool(target or targets))
    elif suffix in PICTURES:
        if len(found) > 1:
            raise ConfigError(
                f"{output}: a picture shows one sentence, and there are {len(found)}; write a page (-o page.html)"
            )
        from weft.explain.picture import draw, view_of

        uses: dict[What, Use] = {What.cross: "cross", What.encoder: "encoder", What.decoder: "causal"}
        draw(view_of(found[0], uses[look], layer=layer, head=chosen, words=words), output, warn=warn)
    else:
        from weft.explain.page import page

        with opened(output) as written:
            written.write(page(found))
    tell(f"wrote {output}")


def _explanations(
    names: Sequence[str], pairs: Sequence[tuple[str, str | None]], device: str, influence: bool | None, options: dict[str, Any]
) -> tuple[list[Explanation], list[LabelExplanation]]:
    """One per sentence and run, of translations and of labels. Runs are loaded one by one, so that only one is in memory."""
    from weft.explain.labels import explain_label
    from weft.inference.classification import ClassificationPredictor
    from weft.translator import load

    found: list[Explanation] = []
    labels: list[LabelExplanation] = []
    for name in names:
        translator = load(runs(name), device=device, warn=warn)
        predictor = translator.predictor(**options)
        for number, (text, target) in enumerate(pairs, start=1):
            try:
                if isinstance(predictor, ClassificationPredictor):
                    labels.append(explain_label(predictor, text, run=name))
                else:
                    found += translator.explain_sentences(text, target=target, influence=influence, run=name, **options)
            except DataError as error:
                raise DataError(f"sentence {number}: {error}" if len(pairs) > 1 else str(error)) from None
    return found, labels


def _write_labels(labels: Sequence[LabelExplanation], output: Path, *, mixed: bool, given: bool) -> None:
    """Writes the page of runs that give labels."""
    from weft.explain.labels import label_page

    if mixed:
        raise ConfigError("--against: one run gives labels and another translates; explain them one by one")
    if given:
        raise ConfigError("--target: the run gives labels, not translations; leave --target and --targets out")
    if output.suffix.lower() in PICTURES:
        raise ConfigError(f"{output}: labels are explained on a page; write one (-o page.html)")
    with opened(output) as written:
        written.write(label_page(labels))


def _pairs(text: str | None, target: str | None, file: Path | None, targets: Path | None) -> list[tuple[str, str | None]]:
    """Sentences, each with a translation to explain or None. Blank lines of files are skipped."""
    from weft.data.lines import read_lines

    if (text is None) == (file is None):
        raise ConfigError("give a sentence to explain, or a file of them with --file (one of the two)")
    if text is not None:
        if targets is not None:
            raise ConfigError("--targets goes with --file; give --target 'a translation' for one sentence")
        return [(text, target)]
    if target is not None:
        raise ConfigError("--target goes with one sentence; give --targets FILE for a file of them")
    lines = list(read_lines(file or ""))
    given: list[str | None] = [None] * len(lines) if targets is None else list(read_lines(targets))
    if len(given) != len(lines):
        raise DataError(f"{targets} has {len(given):,} lines, and {file} has {len(lines):,}; there must be one for each")
    pairs = [pair for pair in zip(lines, given, strict=True) if pair[0].strip()]
    if not pairs:
        raise DataError(f"{file}: there is no sentence in it")
    return pairs


def _head(text: str) -> Any:
    if text in ("mean", "max"):
        return text
    if text.isdecimal():
        return int(text)
    raise ConfigError(f"--head {text}: give a number, counted from 1, or mean, or max")
