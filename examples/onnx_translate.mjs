// Translates with a folder of `weft export RUN --to onnx --out FOLDER`, with transformers.js (npm install @huggingface/transformers).
//
// node examples/onnx_translate.mjs FOLDER "A dog runs."

import path from "node:path";
import { AutoModelForSeq2SeqLM, AutoTokenizer, env } from "@huggingface/transformers";

const [folder, text] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = path.dirname(path.resolve(folder)) + path.sep;
const name = path.basename(path.resolve(folder));

const tokenizer = await AutoTokenizer.from_pretrained(name);
const model = await AutoModelForSeq2SeqLM.from_pretrained(name, { dtype: "fp32" });
for (const line of text.split("\n")) {
  const ids = await model.generate({ ...tokenizer(line), num_beams: 1, do_sample: false });
  console.log(tokenizer.decode(ids[0], { skip_special_tokens: true }));
}
