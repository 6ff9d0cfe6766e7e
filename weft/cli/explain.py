"""`weft explain`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from weft.cli.input_and_output import opened, tell, warn
from weft.cli.options import BEAM, DECODE_SET, DEVICE, RUN, decode_options
from weft.errors import ConfigError, DataError
from weft.runs.run_folder import run_folders

if TYPE_CHECKING:
    from weft.attention.base import View
    from weft.explain.explanation import Explanation
    from weft.explain.html_page import Section

IMAGES, TEXT = (".png", ".svg", ".pdf"), ".txt"


AttentionKind = StrEnum("AttentionKind", ["cross", "encoder", "decoder"])


def explain(
    run: str = RUN,
    text: str = typer.Argument(None, help="The sentence, or the image or recording, to explain; or give --file."),
    target: str = typer.Option(None, "--target", help="Explain this translation instead, and where the model would differ."),
    file: Path = typer.Option(None, "--file", help="A file of sentences instead of one, or of documents as JSON lines."),
    targets: Path = typer.Option(None, "--targets", help="A file with a translation for each sentence."),
    against: list[str] = typer.Option([], "--against", help="Another run to show next to it. Repeatable.", metavar="RUN"),
    output: Path = typer.Option(
        Path("explain.html"),
        "-o",
        "--output",
        help="A page (.html), an image (.png, .svg, .pdf) of one attention, or, with --inside, a text (.txt).",
    ),
    look: AttentionKind = typer.Option(
        AttentionKind.cross,
        "--look",
        help="For an image: attention to the source, among source tokens, or among target tokens.",
    ),
    layer: int = typer.Option(None, "--layer", help="For an image: the layer, counted from 1; default: the mean of all."),
    head: str = typer.Option("mean", "--head", help="For an image: a head, counted from 1, or mean, or max."),
    words: bool = typer.Option(False, "--words", help="For an image: whole words instead of tokens."),
    influence: bool = typer.Option(False, "--influence", help="Also show the effect of removing each source token."),
    inside: bool = typer.Option(False, "--inside", help="Also show every step of the model, with its numbers and formulas."),
    beam: int = BEAM,
    device: str = DEVICE,
    set: list[str] = DECODE_SET,
) -> None:
    """Show how a sentence is translated: attention, the probability of each token, what the search dropped and why.

    Writes one page that needs no network, or one image for a paper. Nothing is reranked. For other tasks the page shows what
    the output is based on, such as weights of words, probabilities of labels, or attention over an image or a spectrogram.
    """
    suffix = output.suffix.lower()
    if suffix not in (".html", TEXT, *IMAGES):
        raise ConfigError(f"{output}: the file name decides what is written; end it in .html, {', '.join((TEXT, *IMAGES))}")
    if suffix == TEXT and not inside:
        raise ConfigError(f"{output}: a text holds the steps of the model; add --inside, or write a page (-o page.html)")
    chosen = _head(head)
    if suffix in IMAGES and against:
        raise ConfigError(f"{output}: an image shows one sentence of one run; for more, write a page (-o page.html)")
    inputs = ExplainInput(text, target, file, targets)
    options = {"influence": influence or None, "inside": inside, **decode_options(set, beam=beam)}
    explanations = _explanations([run, *against], inputs, device, options)
    if suffix in IMAGES:
        _draw(explanations, output, look, layer=layer, head=chosen, words=words)
    elif suffix == TEXT:
        from weft.explain.inside_view import inside_text

        with opened(output) as written:
            written.write("\n".join(inside_text(each.inside) for each in explanations if each.inside is not None))
    else:
        from weft.explain.html_page import explain_page

        page = explain_page(explanations)
        with opened(output) as written:
            written.write(page)
    tell(f"wrote {output}")


def _draw(explanations: Sequence[Explanation | Section], output: Path, look: AttentionKind, **choices: Any) -> None:
    """Draws one attention of the only explanation."""
    from weft.explain.attention_heatmap import draw, view_of
    from weft.explain.explanation import Explanation

    if len(explanations) > 1:
        count = len(explanations)
        raise ConfigError(f"{output}: an image shows one sentence, and there are {count}; write a page (-o page.html)")
    [shown] = explanations
    if not isinstance(shown, Explanation):
        raise ConfigError(f"{output}: only translations are drawn as an image; write a page (-o page.html)")
    own: View = "target" if shown.views("target") else "causal"
    uses: dict[AttentionKind, View] = {
        AttentionKind.cross: "cross",
        AttentionKind.encoder: "encoder",
        AttentionKind.decoder: own,
    }
    draw(view_of(shown, uses[look], **choices), output, warn=warn)


def _explanations(
    names: Sequence[str], inputs: ExplainInput, device: str, options: dict[str, Any]
) -> list[Explanation | Section]:
    """One per sentence and run. Runs are loaded one by one, so that only one is in memory."""
    from weft.runs.translator import load_trained

    explanations: list[Explanation | Section] = []
    for name in names:
        trained = load_trained(run_folders(name), device=device, warn=warn)
        pairs = inputs.pairs(trained.task.data_format.inputs)
        for number, (text, target) in enumerate(pairs, start=1):
            try:
                explanations += trained.explain_sentences(text, target=target, run=name, **options)
            except DataError as error:
                raise DataError(f"sentence {number}: {error}" if len(pairs) > 1 else str(error)) from None
    return explanations


@dataclass(frozen=True)
class ExplainInput:
    """Inputs to explain: one, or a file of them, with a translation for each or none."""

    text: str | None
    target: str | None
    file: Path | None
    targets: Path | None

    def __post_init__(self) -> None:
        if (self.text is None) == (self.file is None):
            raise ConfigError("give a sentence to explain, or a file of them with --file (one of the two)")
        if self.text is not None and self.targets is not None:
            raise ConfigError("--targets goes with --file; give --target 'a translation' for one sentence")
        if self.file is not None and self.target is not None:
            raise ConfigError("--target goes with one sentence; give --targets FILE for a file of them")

    def pairs(self, read: Callable[[Path], Iterable[str]]) -> list[tuple[str, str | None]]:
        """Inputs, each with a translation to explain or None; `read` yields those of a file. Blank ones are skipped."""
        from weft.data.text_lines import check_file, read_lines

        if self.text is not None:
            return [(self.text, self.target)]
        lines = list(read(check_file(self.file or "")))
        inputs: list[str | None] = [None] * len(lines) if self.targets is None else list(read_lines(self.targets))
        if len(inputs) != len(lines):
            raise DataError(
                f"{self.targets} has {len(inputs):,} lines, and {self.file} has {len(lines):,}; there must be one for each"
            )
        pairs = [pair for pair in zip(lines, inputs, strict=True) if pair[0].strip()]
        if not pairs:
            raise DataError(f"{self.file}: there is no sentence in it")
        return pairs


def _head(text: str) -> Any:
    if text in ("mean", "max"):
        return text
    if text.isdecimal():
        return int(text)
    raise ConfigError(f"--head {text}: give a number, counted from 1, or mean, or max")
