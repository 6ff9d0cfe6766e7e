"use strict";
// An example for each route: the fields of the request, and the response.

function examples(source, target, model) {
  const translation = {
    text: "Ein Hund rennt.", score: -0.213, tokens: ["▁Ein", "▁Hund", "▁rennt", ".", "</s>"],
    source_tokens: ["▁A", "▁dog", "▁runs", ".", "</s>"],
    alternatives: [{ text: "Ein Hund läuft.", score: -0.268, tokens: ["▁Ein", "▁Hund", "▁läuft", ".", "</s>"] }],
  };
  const version = "3f9c2a7b";
  const models = [{ name: model, version, source, target, kind: "transformer", beam: 5, most_beam: 16 }];
  return {
    "POST /v1/translate": [{ text: ["A dog runs."], source, target, beam: 5, n_best: 2 }, { model, version, source, target, translations: [translation] }],
    "POST /v1/explain": [{ text: "A dog runs.", model, beam: 4 }, "<!doctype html> …"],
    "GET /v1/models": [null, models],
    "POST /v1/reload": [{}, models],
    "POST /translate": [{ q: "A dog runs.", source, target, alternatives: 1 }, { translatedText: "Ein Hund rennt.", alternatives: ["Ein Hund läuft."] }],
    "POST /detect": [{ q: "A dog runs." }, [{ confidence: 98.5, language: source }]],
    "GET /languages": [null, [{ code: source, name: "English", targets: [target] }]],
    "GET /health": [null, { status: "ok" }],
  };
}

const LIMITS = {
  characters: "characters per request (400 beyond it)",
  texts: "texts per request (400)",
  sentences: "sentences per request (400), and waiting from all requests (503 with Retry-After)",
  bytes: "bytes per request (413)",
  beam: "beam size and number of translations (400)",
  attentionWeights: "attention weights per response (400)",
  seconds: "seconds until a request is answered (504)",
  requestsPerMinute: "requests per minute and key, or per address if there are no keys (429 with Retry-After)",
};
