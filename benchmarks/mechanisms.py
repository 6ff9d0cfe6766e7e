"""Draws the pictures of docs/mechanisms.md: the attention weights of the runs of families.py.

    python benchmarks/mechanisms.py OUT --collect OUT/weights.json      collect weights from the runs; needs no matplotlib
    python benchmarks/mechanisms.py OUT/weights.json --draw docs        draw, and link the pictures in the page
    python benchmarks/mechanisms.py OUT --draw docs                     both

All runs translate one sentence whose verbs have other places in German. Missing runs are skipped. A picture is written to
docs/images/mechanisms/NAME.png, and the page shows it after the line `<!-- drawing: NAME -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import weft
from weft.errors import WeftError
from weft.explain.attention_heatmap import cross_attention, draw_attention
from weft.tasks.translation.segmenter import Translation

SENTENCE = "A young woman who is wearing a red hat is reading a book in the park."
RUNS = {
    "additive": "bahdanau",
    "additive_normed": "normed",
    "dot": "luong-dot",
    "general": "luong-general",
    "concat": "luong-concat",
    "location": "luong-location",
    "local_m": "local-m",
    "local_p": "local-p",
    "key_value": "key-value",
    "hard": "hard",
    "monotonic": "monotonic",
    "forced": "forced",
    "location_aware": "location-aware",
    "multistep": "convs2s",
    "full": "transformer",
}
MIX, MIX_RUN = "wiring", "wiring-mix"
COLOURS, MAX_SIZE = 64, (760, 760)
"""Of a picture: number of colours, and size in pixels."""

MARK = re.compile(r"(<!-- drawing: (\w+) -->\n)(!\[[^\n]*\n)?")
Drawing = dict[str, Any]


def collect(out: Path) -> dict[str, Drawing]:
    """The translation of each run, and its weights as the mean of all layers and heads."""
    drawings: dict[str, Drawing] = {}
    for name, run in [*RUNS.items(), (MIX, MIX_RUN)]:
        try:
            translator = weft.load(out / run)
            drawings[name] = _mixture(translator.model) if name == MIX else _weights(translator)
        except WeftError as error:
            print(f"{name}: skipped: {error}")
    return drawings


def _weights(translator: weft.Translator) -> Drawing:
    translation = translator.translate(SENTENCE, beam=5, attention=True)
    weights = cross_attention(translation).astype(float).round(4).tolist()
    return {"text": translation.text, "tokens": translation.tokens, "source": translation.source_tokens, "weights": weights}


def _mixture(model: torch.nn.Module) -> Drawing:
    """Shares [decoder layers, encoder layers] of each encoder layer in the input of each decoder layer."""
    shares = next(value for name, value in model.named_parameters() if name.endswith("mixture"))
    return {"weights": shares.detach().float().softmax(-1).cpu().double().numpy().round(4).tolist()}


def draw(name: str, drawing: Drawing, file: Path) -> None:
    """Writes a small PNG: a heat map needs few colours."""
    from PIL import Image

    weights = np.array(drawing["weights"], np.float32)
    file.parent.mkdir(parents=True, exist_ok=True)
    if name == MIX:
        _draw_mixture(weights, file)
    else:
        attention, uses = {"cross": weights[None]}, {"cross": "cross"}
        draw_attention(Translation(drawing["text"], 0.0, [], drawing["tokens"], drawing["source"], attention, uses=uses), file)
    picture = Image.open(file).convert("RGB")
    picture.thumbnail(MAX_SIZE)
    picture.quantize(COLOURS).save(file, optimize=True)
    print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


def _draw_mixture(shares: np.ndarray[Any, Any], file: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4, 2.8), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(shares, cmap="Blues", vmin=0)
    for (row, column), share in np.ndenumerate(shares):
        axes.text(
            column, row, f"{share:.2f}", ha="center", va="center", color="white" if share > 0.6 * shares.max() else "black"
        )
    axes.set_xticks(range(shares.shape[1]), range(1, shares.shape[1] + 1))
    axes.set_yticks(range(shares.shape[0]), range(1, shares.shape[0] + 1))
    axes.set_xlabel("encoder layer")
    axes.set_ylabel("decoder layer")
    figure.savefig(file, dpi=150)


def link(page: Path, pictures: Path) -> None:
    """Links the existing pictures in the page, each after its mark."""

    def with_link(match: re.Match[str]) -> str:
        file = pictures / f"{match[2]}.png"
        if not file.exists():
            return match[1]
        path = file.relative_to(page.parent).as_posix()
        return f"{match[1]}![weights of {match[2]} on one sentence]({path})\n"

    page.write_text(MARK.sub(with_link, page.read_text("utf-8")), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the sweep, or the file collected from it")
    parser.add_argument("--collect", type=Path, metavar="JSON", help="file for the weights")
    parser.add_argument("--draw", type=Path, metavar="DOCS", help="folder of mechanisms.md")
    options = parser.parse_args()
    if options.collect is None and options.draw is None:
        parser.error("give --collect JSON, --draw DOCS, or both")
    if options.out.suffix == ".json":
        drawings = json.loads(options.out.read_text("utf-8"))["drawings"]
    else:
        drawings = collect(options.out)
    if not drawings:
        sys.exit(f"{options.out} has no run to draw")
    if options.collect:
        document = {"sentence": SENTENCE, "drawings": drawings}
        options.collect.write_text(json.dumps(document, ensure_ascii=False) + "\n", "utf-8")
    if options.draw:
        pictures = options.draw / "images" / "mechanisms"
        for name, drawing in drawings.items():
            draw(name, drawing, pictures / f"{name}.png")
        link(options.draw / "mechanisms.md", pictures)


if __name__ == "__main__":
    main()
