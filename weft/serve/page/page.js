"use strict";
// The page: translates as you type, shows what the model looked at. Texts are only ever set as text, never as HTML.

const byId = (id) => document.getElementById(id);
const [modelChoice, beamChoice, keyField, source, target] = ["model", "beam", "key", "source", "target"].map(byId);
const WAIT = 180; // milliseconds without a key before the text is sent
const MOST = 4; // translations of a line that are shown

let models = [];
let waiting = 0;
let running = null;
let limit = Infinity;

function make(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(text, wrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", wrong);
}

function chosen() {
  return models.find((model) => model.name === modelChoice.value);
}

function beam() {
  return Number(beamChoice.value) || chosen().beam;
}

function offerBeams() {
  const before = beamChoice.value;
  const { beam: own, most_beam: most } = chosen();
  const widths = [1, 2, 4, 8, 16].filter((width) => width <= most);
  beamChoice.replaceChildren(new Option(`as trained (${own})`, ""), ...widths.map((width) => new Option(width, width)));
  beamChoice.value = widths.includes(Number(before)) ? before : "";
}

async function ask(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if (keyField.value) headers.Authorization = `Bearer ${keyField.value}`;
  const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error), { again: Number(answer.headers.get("Retry-After")) });
  return found;
}

async function translate() {
  running?.abort();
  const own = (running = new AbortController());
  const all = source.value.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  const lines = all.filter((line) => line.trim());
  if (!lines.length) return show(all, lines, []);
  say("…");
  target.classList.add("old");
  const began = performance.now();
  try {
    const body = { text: lines, model: modelChoice.value, alignment: true, n_best: Math.min(MOST, beam()) };
    if (beamChoice.value) body.beam = beam();
    const found = await ask("/v1/translate", body, own.signal);
    show(all, lines, found.translations);
    say(`${Math.round(performance.now() - began)} ms`);
  } catch (error) {
    if (error.name === "AbortError") return;
    say(error.message, true);
    if (error.again) later(1000 * error.again);
  }
}

function later(milliseconds = WAIT) {
  clearTimeout(waiting);
  waiting = setTimeout(translate, milliseconds);
  byId("count").textContent = limit < Infinity ? `${source.value.length} of ${limit} characters` : "";
}

function show(all, lines, found) {
  const following = found.values();
  target.textContent = all.map((line) => (line.trim() ? following.next().value.text : "")).join("\n");
  target.classList.remove("old");
  byId("details").hidden = !found.length;
  byId("lines").replaceChildren(...found.map((each, place) => pair(lines[place], each)));
  if (!found.length) say("");
}

function pair(line, found) {
  const card = make("div", "pair");
  if (found.alignment) {
    const { source: read, target: written, weights } = found.alignment;
    const rows = [spans(read), spans(written)];
    connect(rows[0].pieces, rows[1].pieces, (from, to) => weights[to][from]);
    connect(rows[1].pieces, rows[0].pieces, (from, to) => weights[from][to]);
    card.append(rows[0].row, rows[1].row);
  } else {
    card.append(make("p", "pieces", line), make("p", "pieces", found.text));
  }
  const tools = make("div", "tools");
  tools.append(make("span", "", `score ${found.score.toFixed(3)}`));
  if (found.alternatives) tools.append(others(found.alternatives));
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

/** While one of `pieces` is pointed at, the others are marked as strongly as they belong to it. */
function connect(pieces, others, weight) {
  pieces.forEach((piece, from) => {
    const strongest = Math.max(1e-6, ...others.map((_, to) => weight(from, to)));
    const mark = () => others.forEach((other, to) => other.style.setProperty("--weight", (0.75 * weight(from, to)) / strongest));
    const clear = () => others.forEach((other) => other.style.removeProperty("--weight"));
    for (const event of ["pointerenter", "focus"]) piece.addEventListener(event, mark);
    for (const event of ["pointerleave", "blur"]) piece.addEventListener(event, clear);
  });
}

function others(alternatives) {
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

/** A form, because a page opened from here would inherit this page's policy, which lets no script of its own run. */
function openExplanation(line) {
  const form = byId("explain");
  form.elements.text.value = line;
  form.elements.model.value = modelChoice.value;
  form.elements.beam.value = beam();
  form.elements.api_key.value = keyField.value;
  form.submit();
}

async function start() {
  const [served, settings] = await Promise.all(["/v1/models", "/frontend/settings"].map((path) => fetch(path).then((a) => a.json())));
  models = served;
  limit = settings.charLimit;
  modelChoice.replaceChildren(...models.map((model) => new Option(`${model.name} (${model.source} → ${model.target})`, model.name)));
  byId("key-label").hidden = !settings.keyRequired;
  keyField.value = sessionStorage.getItem("weft.key") ?? "";
  offerBeams();
  later(0);
}

source.addEventListener("input", () => later());
beamChoice.addEventListener("change", () => later(0));
modelChoice.addEventListener("change", () => { offerBeams(); later(0); });
keyField.addEventListener("change", () => { sessionStorage.setItem("weft.key", keyField.value); later(0); });
byId("clear").addEventListener("click", () => { source.value = ""; source.focus(); later(0); });
byId("copy").addEventListener("click", () => navigator.clipboard?.writeText(target.textContent).then(() => say("copied")));
start().catch((error) => say(error.message, true));
