"use strict";
// What can be chosen: languages, a model for them, and a beam.

const [fromChoice, toChoice, modelChoice, beamChoice] = ["from", "to", "model", "beam"].map(find);
const AUTO = "auto";

let models = [];
const names = new Map();

function named(code) {
  const name = names.get(code);
  return name && name !== code ? `${name} (${code})` : code;
}

/** The models for the chosen languages; those for all source languages if the language is to be detected. */
function candidates() {
  return models.filter(({ source, target }) => [AUTO, source].includes(fromChoice.value) && target === toChoice.value);
}

function selectedModel() {
  return candidates().find(({ name }) => name === modelChoice.value) ?? candidates()[0];
}

/** Refills a choice and keeps what was chosen if it is still there. */
function offer(choice, options) {
  const previous = choice.value;
  choice.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
  if (options.some(([value]) => String(value) === previous)) choice.value = previous;
}

function distinct(codes) {
  return [...new Set(codes)];
}

function offerSources() {
  const codes = distinct(models.map(({ source }) => source));
  const auto = codes.length > 1 ? [[AUTO, "Detect language"]] : [];
  offer(fromChoice, [...auto, ...codes.map((code) => [code, named(code)])]);
  fromChoice.value = codes[0];
}

function offerRest() {
  const codes = models.filter(({ source }) => [AUTO, source].includes(fromChoice.value)).map(({ target }) => target);
  offer(toChoice, distinct(codes).map((code) => [code, named(code)]));
  const found = candidates();
  offer(modelChoice, found.map(({ name }) => [name, name]));
  find("model-label").hidden = fromChoice.value === AUTO || found.length < 2;
  const { beam, most_beam: most } = selectedModel();
  offer(beamChoice, [["", `default (${beam})`], ...[1, 2, 4, 8, 16].filter((width) => width <= most).map((width) => [width, width])]);
}

/** Names the language that was detected, and tells both texts their language and direction. */
function showLanguages(source, target) {
  const auto = [...fromChoice.options].find(({ value }) => value === AUTO);
  if (auto) auto.text = fromChoice.value === AUTO && source ? `Detected: ${named(source)}` : "Detect language";
  for (const [node, code] of [[find("source"), source], [find("target"), target]]) Object.assign(node, script(code));
}

/** `lang` and `dir` of a text in a language. The text itself decides if the browser does not know the direction. */
function script(code) {
  try {
    const locale = new Intl.Locale(code);
    const direction = locale.language === "und" ? "auto" : (locale.getTextInfo?.() ?? locale.textInfo)?.direction;
    return { lang: locale.language === "und" ? "" : code, dir: direction ?? "auto" };
  } catch {
    return { lang: "", dir: "auto" };
  }
}
