"use strict";
// The page: translates while you type.

const [keyField, source, target, prefixField, glossaryField] = ["key", "source", "target", "prefix", "glossary"].map(find);
const DELAY = 180; // milliseconds after the last keystroke before the text is sent
const ALTERNATIVES = 4; // maximum number of translations shown per line

let timer = 0;
let controller = null;
let limit = Infinity;

function showStatus(text, wrong = false) {
  find("status").textContent = text;
  find("status").classList.toggle("problem", wrong);
}

function showWaiting(waiting) {
  target.setAttribute("aria-busy", waiting);
  target.classList.toggle("old", waiting);
}

/** Cancels what was asked before: the server stops working on it when the connection ends. */
function schedule(milliseconds = DELAY) {
  clearTimeout(timer);
  controller?.abort();
  timer = setTimeout(translate, milliseconds);
  const [count, most] = [source.value.length, limit].map((number) => number.toLocaleString("en"));
  find("count").textContent = limit < Infinity ? `${count} of ${most} characters` : "";
}

/** The terms of the glossary field: `source = target` on each line. */
function glossary() {
  const lines = glossaryField.value.split("\n").filter((line) => line.trim());
  return Object.fromEntries(lines.map((line) => {
    const [term, wanted = ""] = line.split(/[=\t](.*)/s).map((part) => part.trim());
    if (term && wanted.replace("!", "").trim()) return [term, wanted];
    throw new Error(`the glossary line “${line.trim()}” is not a term, = and its translation`);
  }));
}

function requestBody(lines) {
  const beam = Number(beamChoice.value) || undefined;
  const widths = candidates().map((model) => beam ?? model.beam);
  const languages = fromChoice.value === AUTO ? { source: AUTO, target: toChoice.value } : { model: selectedModel().name };
  const prefix = prefixField.value.trim() || undefined;
  return { text: lines, ...languages, beam, n_best: Math.min(ALTERNATIVES, ...widths), prefix, glossary: glossary(), alignment: true };
}

async function translate() {
  const { signal } = (controller = new AbortController());
  const all = source.value.split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/);
  const lines = all.filter((line) => line.trim());
  if (!lines.length) return show(all, lines, { translations: [] });
  showWaiting(true);
  const began = performance.now();
  try {
    const headers = { "Content-Type": "application/json" };
    if (keyField.value) headers.Authorization = `Bearer ${keyField.value}`;
    const answer = await ask("v1/translate", { method: "POST", headers, body: JSON.stringify(requestBody(lines)), signal });
    show(all, lines, answer);
    find("time").textContent = `${Math.round(performance.now() - began)} ms`;
  } catch (error) {
    if (error.name !== "AbortError") showProblem(error);
  }
}

function showProblem(error) {
  find("time").textContent = "";
  target.setAttribute("aria-busy", false);
  if (!error.retryAfter) return showStatus(sentence(error.message), true);
  showStatus(`${sentence(error.message)} The page tries again in ${error.retryAfter} s.`, true);
  timer = setTimeout(translate, 1000 * error.retryAfter);
}

function show(all, lines, { translations, model, source: from = "", target: to = toChoice.value }) {
  const remaining = translations.values();
  const text = all.map((line) => (line.trim() ? remaining.next().value.text : "")).join("\n");
  if (target.textContent !== text) target.textContent = text; // an unchanged text is not announced again
  showWaiting(false);
  showStatus("");
  find("time").textContent = "";
  showLanguages(from || (fromChoice.value === AUTO ? "" : fromChoice.value), to);
  find("details").hidden = !translations.length;
  find("lines").replaceChildren(...translations.map((each, place) =>
    pair(lines[place], each, { source: from, target: to }, place + 1, () => openExplanation(lines[place], model))));
}

/** Submits a form: a page opened by script would inherit this page's security policy, which blocks inline scripts. */
function openExplanation(text, model) {
  const form = find("explain");
  const beam = beamChoice.value || models.find(({ name }) => name === model).beam;
  for (const [name, value] of Object.entries({ text, model, beam, api_key: keyField.value })) form.elements[name].value = value;
  form.submit();
}

/** Over plain HTTP browsers do not offer the clipboard, but a selected text can still be copied. */
async function copy() {
  const written = await navigator.clipboard?.writeText(target.textContent).then(() => true, () => false);
  if (!written) {
    getSelection().selectAllChildren(target);
    const copied = document.execCommand("copy");
    getSelection().removeAllRanges();
    if (!copied) return showStatus("This browser does not allow copying: select the translation and copy it.", true);
  }
  showStatus("Copied.");
}

async function start() {
  const [list, languages, settings] = await Promise.all(["v1/models", "languages", "frontend/settings"].map((path) => ask(path)));
  models = list;
  limit = settings.charLimit;
  offerFiles(settings);
  languages.forEach(({ code, name }) => names.set(code, name));
  find("key-label").hidden = !settings.keyRequired;
  keyField.value = sessionStorage.getItem("weft.key") ?? "";
  offerSources();
  offerRest();
  showLanguages(models[0].source, models[0].target);
  schedule(0);
}

for (const field of [source, prefixField, glossaryField]) field.addEventListener("input", () => schedule());
for (const choice of [fromChoice, toChoice, modelChoice]) choice.addEventListener("change", () => { offerRest(); schedule(0); });
beamChoice.addEventListener("change", () => schedule(0));
keyField.addEventListener("change", () => { sessionStorage.setItem("weft.key", keyField.value); schedule(0); });
find("clear").addEventListener("click", () => { source.value = ""; source.focus(); schedule(0); });
find("copy").addEventListener("click", copy);
start().catch((error) => showStatus(`${sentence(error.message)} Reload the page to try again.`, true));
