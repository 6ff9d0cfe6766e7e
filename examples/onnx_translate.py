"""Translates with a folder of `weft export RUN --to onnx --out FOLDER`, with onnxruntime, tokenizers and numpy alone.

python examples/onnx_translate.py FOLDER "A dog runs."
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import tokenizers

folder, text = Path(sys.argv[1]), sys.argv[2]
tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
settings = json.loads((folder / "generation_config.json").read_text("utf-8"))
encoder = onnxruntime.InferenceSession(folder / "onnx" / "encoder_model.onnx")
decoder = onnxruntime.InferenceSession(folder / "onnx" / "decoder_model_merged.onnx")
outputs = [each.name for each in decoder.get_outputs()]
never = [each[0] for each in settings["bad_words_ids"]]

source = np.array([tokenizer.encode(text).ids])
mask = np.ones_like(source)
memory = encoder.run(None, {"input_ids": source, "attention_mask": mask})[0]

# The cache is empty at first; its heads and widths are those of the inputs.
cached = [each for each in decoder.get_inputs() if each.name.startswith("past_key_values")]
past = {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in cached}
written: list[int] = []
last = settings["decoder_start_token_id"]
while last != settings["eos_token_id"] and len(written) < settings["max_length"]:
    inputs = {"input_ids": np.array([[last]]), "encoder_hidden_states": memory, "encoder_attention_mask": mask}
    found = dict(zip(outputs, decoder.run(None, {**inputs, **past, "use_cache_branch": np.array([bool(written)])})))
    past = {name.replace("present", "past_key_values"): value for name, value in found.items() if name != "logits"}
    logits = found["logits"][0, -1]
    logits[never] = -np.inf
    last = int(logits.argmax())
    written.append(last)
print(tokenizer.decode(written))
