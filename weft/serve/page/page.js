"use strict";
// The page: translates while you type and shows the attention. Texts are only ever set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const [modelChoice, beamChoice, keyField, source, target] = ["model", "beam", "key", "source", "target"].map(byId);
const DELAY = 180; // milliseconds after the last keystroke before the text is sent
const ALTERNATIVES = 4; // maximum number of translations shown per line

let models = [];
let timer = 0;
let controller = null;
let limit = Infinity;

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function showStatus(text, wrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", wrong);
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

async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (keyField.value) headers.Authorization = `Bearer ${keyField.value}`;
  const response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const result = await response.json();
  if (!response.ok) throw Object.assign(new Error(result.error), { retryAfter: Number(response.headers.get("Retry-After")) });
  return result;
}

async function translate() {
  controller?.abort();
  const current = (controller = new AbortController());
  const all = source.value.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  const lines = all.filter((line) => line.trim());
  if (!lines.length) return show(all, lines, []);
  showStatus("…");
  target.classList.add("old");
  const began = performance.now();
  try {
    const body = { text: lines, model: modelChoice.value, alignment: true, n_best: Math.min(ALTERNATIVES, beam()) };
    if (beamChoice.value) body.beam = beam();
    const { translations } = await post("/v1/translate", body, current.signal);
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
  byId("count").textContent = limit < Infinity ? `${source.value.length} of ${limit} characters` : "";
}

function show(all, lines, translations) {
  const remaining = translations.values();
  target.textContent = all.map((line) => (line.trim() ? remaining.next().value.text : "")).join("\n");
  target.classList.remove("old");
  byId("details").hidden = !translations.length;
  byId("lines").replaceChildren(...translations.map((each, place) => pair(lines[place], each)));
  if (!translations.length) showStatus("");
}

function pair(line, translation) {
  const card = make("div", "pair");
  if (translation.alignment) {
    const { source, target, weights } = translation.alignment;
    const rows = [spans(source), spans(target)];
    connect(rows[0].pieces, rows[1].pieces, (from, to) => weights[to][from]);
    connect(rows[1].pieces, rows[0].pieces, (from, to) => weights[from][to]);
    card.append(rows[0].row, rows[1].row);
  } else {
    card.append(make("p", "pieces", line), make("p", "pieces", translation.text));
  }
  const tools = make("div", "tools");
  tools.append(make("span", "", `score ${translation.score.toFixed(3)}`));
  if (translation.alternatives) tools.append(alternativesList(translation.alternatives));
  const explain = make("button", "explain", "Explain");
  explain.type = "button";
  explain.addEventListener("click", () => openExplanation(line));
  tools.append(explain);
  card.append(tools);
  return card;
}

function spans(texts) {
  const row = make("p", "pieces");
  row.dir = "auto";
  const pieces = texts.map((text) => {
    const piece = make("span", "piece", text);
    piece.tabIndex = 0;
    return piece;
  });
  row.append(...pieces);
  return { row, pieces };
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
  const details = make("details", "alternatives");
  const list = make("ol");
  for (const each of alternatives) {
    const item = make("li", "", each.text);
    item.append(make("span", "", each.score.toFixed(3)));
    list.append(item);
  }
  details.append(make("summary", "", `${alternatives.length} more`), list);
  return details;
}

/** Submits a form: a page opened by script would inherit this page's security policy, which blocks inline scripts. */
function openExplanation(line) {
  const form = byId("explain");
  form.elements.text.value = line;
  form.elements.model.value = modelChoice.value;
  form.elements.beam.value = beam();
  form.elements.api_key.value = keyField.value;
  form.submit();
}

async function start() {
  const [list, settings] = await Promise.all(["/v1/models", "/frontend/settings"].map((path) => fetch(path).then((response) => response.json())));
  models = list;
  limit = settings.charLimit;
  modelChoice.replaceChildren(...models.map((model) => new Option(`${model.name} (${model.source} → ${model.target})`, model.name)));
  byId("key-label").hidden = !settings.keyRequired;
  keyField.value = sessionStorage.getItem("weft.key") ?? "";
  offerBeams();
  schedule(0);
}

source.addEventListener("input", () => schedule());
beamChoice.addEventListener("change", () => schedule(0));
modelChoice.addEventListener("change", () => { offerBeams(); schedule(0); });
keyField.addEventListener("change", () => { sessionStorage.setItem("weft.key", keyField.value); schedule(0); });
byId("clear").addEventListener("click", () => { source.value = ""; source.focus(); schedule(0); });
byId("copy").addEventListener("click", () => navigator.clipboard?.writeText(target.textContent).then(() => showStatus("copied")));
start().catch((error) => showStatus(error.message, true));
