"use strict";
// The page: translates while you type and shows the attention.

const [modelChoice, beamChoice, keyField, source, target] = ["model", "beam", "key", "source", "target"].map(find);
const DELAY = 180; // milliseconds after the last keystroke before the text is sent
const ALTERNATIVES = 4; // maximum number of translations shown per line

let models = [];
let timer = 0;
let controller = null;
let limit = Infinity;

function showStatus(text, wrong = false) {
  find("status").textContent = text;
  find("status").classList.toggle("wrong", wrong);
}

function selectedModel() {
  return models.find((model) => model.name === modelChoice.value);
}

function beam() {
  return Number(beamChoice.value) || selectedModel().beam;
}

function offerBeams() {
  const previous = beamChoice.value;
  const { beam: trained, most_beam: limit } = selectedModel();
  const widths = [1, 2, 4, 8, 16].filter((width) => width <= limit);
  beamChoice.replaceChildren(new Option(`default (${trained})`, ""), ...widths.map((width) => new Option(width, width)));
  beamChoice.value = widths.includes(Number(previous)) ? previous : "";
}

async function translate() {
  controller?.abort();
  const { signal } = (controller = new AbortController());
  const all = source.value.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  const lines = all.filter((line) => line.trim());
  if (!lines.length) return show(all, lines, []);
  showStatus("…");
  target.classList.add("old");
  const began = performance.now();
  try {
    const body = { text: lines, model: modelChoice.value, alignment: true, n_best: Math.min(ALTERNATIVES, beam()) };
    if (beamChoice.value) body.beam = beam();
    const headers = { "Content-Type": "application/json" };
    if (keyField.value) headers.Authorization = `Bearer ${keyField.value}`;
    const response = await fetch("v1/translate", { method: "POST", headers, body: JSON.stringify(body), signal });
    const { error, translations } = await response.json();
    if (!response.ok) throw Object.assign(new Error(error), { retryAfter: Number(response.headers.get("Retry-After")) });
    show(all, lines, translations);
    showStatus(`${Math.round(performance.now() - began)} ms`);
  } catch (error) {
    if (error.name === "AbortError") return;
    showStatus(error.message, true);
    if (error.retryAfter) schedule(1000 * error.retryAfter);
  }
}

function schedule(milliseconds = DELAY) {
  clearTimeout(timer);
  timer = setTimeout(translate, milliseconds);
  find("count").textContent = limit < Infinity ? `${source.value.length} of ${limit} characters` : "";
}

function show(all, lines, translations) {
  const remaining = translations.values();
  target.textContent = all.map((line) => (line.trim() ? remaining.next().value.text : "")).join("\n");
  target.classList.remove("old");
  find("details").hidden = !translations.length;
  find("lines").replaceChildren(...translations.map((each, place) => pair(lines[place], each)));
  if (!translations.length) showStatus("");
}

function pair(line, { text, score, alignment, alternatives }) {
  const rows = [alignment?.source ?? [line], alignment?.target ?? [text]].map((texts) =>
    texts.map((each) => element("span", alignment ? { class: "piece", tabindex: 0 } : {}, each)));
  if (alignment) {
    connect(rows[0], rows[1], (from, to) => alignment.weights[to][from]);
    connect(rows[1], rows[0], (from, to) => alignment.weights[from][to]);
  }
  return element("div", { class: "pair" }, ...rows.map((row) => element("p", { class: "pieces", dir: "auto" }, ...row)),
    element("div", { class: "tools" }, element("span", {}, `score ${score.toFixed(3)}`), ...alternativesList(alternatives ?? []),
      element("button", { class: "explain", type: "button", onclick: () => openExplanation(line) }, "Explain")));
}

/** Hovering over one of `pieces` highlights the others in proportion to their weight. */
function connect(pieces, others, weight) {
  pieces.forEach((piece, from) => {
    const strongest = Math.max(1e-6, ...others.map((_, to) => weight(from, to)));
    const highlight = () => others.forEach((other, to) => other.style.setProperty("--weight", (0.75 * weight(from, to)) / strongest));
    const clear = () => others.forEach((other) => other.style.removeProperty("--weight"));
    for (const event of ["pointerenter", "focus"]) piece.addEventListener(event, highlight);
    for (const event of ["pointerleave", "blur"]) piece.addEventListener(event, clear);
  });
}

function alternativesList(alternatives) {
  if (!alternatives.length) return [];
  const items = alternatives.map(({ text, score }) => element("li", {}, text, element("span", {}, score.toFixed(3))));
  return [element("details", { class: "alternatives" }, element("summary", {}, `${alternatives.length} more`), element("ol", {}, ...items))];
}

/** Submits a form: a page opened by script would inherit this page's security policy, which blocks inline scripts. */
function openExplanation(line) {
  const form = find("explain"), fields = { text: line, model: modelChoice.value, beam: beam(), api_key: keyField.value };
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  form.submit();
}

async function start() {
  const [list, settings] = await Promise.all(["v1/models", "frontend/settings"].map((path) => fetch(path).then((response) => response.json())));
  models = list;
  limit = settings.charLimit;
  modelChoice.replaceChildren(...models.map((model) => new Option(`${model.name} (${model.source} → ${model.target})`, model.name)));
  find("key-label").hidden = !settings.keyRequired;
  keyField.value = sessionStorage.getItem("weft.key") ?? "";
  offerBeams();
  schedule(0);
}

source.addEventListener("input", () => schedule());
beamChoice.addEventListener("change", () => schedule(0));
modelChoice.addEventListener("change", () => { offerBeams(); schedule(0); });
keyField.addEventListener("change", () => { sessionStorage.setItem("weft.key", keyField.value); schedule(0); });
find("clear").addEventListener("click", () => { source.value = ""; source.focus(); schedule(0); });
find("copy").addEventListener("click", () => navigator.clipboard?.writeText(target.textContent).then(() => showStatus("copied")));
start().catch((error) => showStatus(error.message, true));
