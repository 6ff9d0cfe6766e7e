"""COMET (Rei et al. 2020) as a metric of `weft evaluate`, in an environment of its own:

    python -m venv comet && comet/bin/pip install unbabel-comet
    weft evaluate runs/ende --data test.en,test.de --metric command:'comet/bin/python examples/comet_metric.py'

An argument names another model, such as Unbabel/wmt22-cometkiwi-da, which reads no reference. A model is downloaded when it is
first used. To wrap another metric, change `scores`: it needs nothing of weft.
"""

import json
import sys
from contextlib import redirect_stdout
from importlib.metadata import version

MODEL = "Unbabel/wmt22-comet-da"


def scores(name: str, sentences: list[dict[str, str]]) -> tuple[list[float], float]:
    """The score of each sentence, and that of all together."""
    import torch
    from comet import download_model, load_from_checkpoint

    model = load_from_checkpoint(download_model(name))
    data = [{"src": each["source"], "mt": each["output"], "ref": each["reference"]} for each in sentences]
    found = model.predict(data, batch_size=16, gpus=int(torch.cuda.is_available()))
    return [float(each) for each in found.scores], float(found.system_score)


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else MODEL
    sentences = [json.loads(line) for line in sys.stdin.buffer]
    with redirect_stdout(sys.stderr):  # standard output is for scores only
        single, total = scores(name, sentences)
    for each in single:
        print(json.dumps({"score": each}))
    signature = f"{name}|version:{version('unbabel-comet')}"
    print(json.dumps({"score": total, "name": "COMET", "signature": signature, "higher_is_better": True}))


if __name__ == "__main__":
    main()
