"""Drawings for docs/mechanisms.md: where each attention looks, from the runs of families.py.

    python benchmarks/mechanisms.py OUT --collect OUT/weights.json      ask the runs in OUT; needs no matplotlib
    python benchmarks/mechanisms.py OUT/weights.json --draw docs        draw, and link the pictures in the page
    python benchmarks/mechanisms.py OUT --draw docs                     both

All translate one sentence, whose German has its verbs elsewhere. Runs that are not there are passed over. A picture goes to
docs/images/mechanisms/NAME.png, and the page shows it after its line `<!-- drawing: NAME -->`.
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
from weft.explain.picture import cross_attention, draw_attention
from weft.inference.translation import Translation

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
COLOURS, MOST = 64, (760, 760)
"""Of a picture: how many, and how large in pixels."""

MARK = re.compile(r"(<!-- drawing: (\w+) -->\n)(!\[[^\n]*\n)?")
Drawing = dict[str, Any]


def collect(out: Path) -> dict[str, Drawing]:
    """What each run wrote for the sentence, and its weights, the mean of all layers and heads."""
    found: dict[str, Drawing] = {}
    for name, run in [*RUNS.items(), (MIX, MIX_RUN)]:
        try:
            translator = weft.load(out / run)
            found[name] = _mixture(translator.model) if name == MIX else _weights(translator)
        except WeftError as error:
            print(f"{name}: passed over: {error}")
    return found


def _weights(translator: weft.Translator) -> Drawing:
    translation = translator.translate(SENTENCE, beam=5, attention=True)
    weights = cross_attention(translation).astype(float).round(4).tolist()
    return {"text": translation.text, "tokens": translation.tokens, "source": translation.source_tokens, "weights": weights}


def _mixture(model: torch.nn.Module) -> Drawing:
    """The share [decoder layers, encoder layers] of each encoder layer in what each decoder layer reads."""
    shares = next(value for name, value in model.named_parameters() if name.endswith("mixture"))
    return {"weights": shares.detach().float().softmax(-1).cpu().double().numpy().round(4).tolist()}


def draw(name: str, drawing: Drawing, file: Path) -> None:
    """Writes a small PNG: few colours say as much in a heat map."""
    from PIL import Image

    weights = np.array(drawing["weights"], np.float32)
    file.parent.mkdir(parents=True, exist_ok=True)
    if name == MIX:
        _draw_mixture(weights, file)
    else:
        shown = {"decoder.cross": weights[None]}
        draw_attention(Translation(drawing["text"], 0.0, [], drawing["tokens"], drawing["source"], shown), file)
    picture = Image.open(file).convert("RGB")
    picture.thumbnail(MOST)
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
    """Shows in the page the pictures that there are, each behind its mark."""

    def shown(found: re.Match[str]) -> str:
        file = pictures / f"{found[2]}.png"
        if not file.exists():
            return found[1]
        place = file.relative_to(page.parent).as_posix()
        return f"{found[1]}![weights of {found[2]} on one sentence]({place})\n"

    page.write_text(MARK.sub(shown, page.read_text("utf-8")), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the sweep, or what was collected from it")
    parser.add_argument("--collect", type=Path, metavar="JSON", help="where to write the weights")
    parser.add_argument("--draw", type=Path, metavar="DOCS", help="the folder of mechanisms.md")
    options = parser.parse_args()
    if options.collect is None and options.draw is None:
        parser.error("say what to do: --collect JSON, --draw DOCS, or both")
    if options.out.suffix == ".json":
        found = json.loads(options.out.read_text("utf-8"))["drawings"]
    else:
        found = collect(options.out)
    if not found:
        sys.exit(f"{options.out}: there is no run to draw")
    if options.collect:
        document = {"sentence": SENTENCE, "drawings": found}
        options.collect.write_text(json.dumps(document, ensure_ascii=False) + "\n", "utf-8")
    if options.draw:
        pictures = options.draw / "images" / "mechanisms"
        for name, drawing in found.items():
            draw(name, drawing, pictures / f"{name}.png")
        link(options.draw / "mechanisms.md", pictures)


if __name__ == "__main__":
    main()
