"use strict";
// The list of runs, their curves, and the rhythm in which the page asks for news.

const EVERY = 2000, SHOWN = 3, SAID = 8000;
const ticked = new Set();
let controlled = false, known = null, drawn = "", asked = false, failing = false, forgotten = 0;

const keyField = find("key"), fromAddress = new URLSearchParams(location.hash.slice(1)).get("key");
if (fromAddress) {
  sessionStorage.setItem("weft-key", fromAddress);
  history.replaceState(null, "", location.pathname + location.search);
}
keyField.value = sessionStorage.getItem("weft-key") ?? "";

function showStatus(text, wrong = false) {
  if (find("status").textContent !== text) find("status").textContent = text;
  find("status").classList.toggle("problem", wrong);
  clearTimeout(forgotten);
}

/** Shows a message for some seconds. */
function mention(text) {
  showStatus(text);
  forgotten = setTimeout(() => showStatus(""), SAID);
}

function request(path, options = {}) {
  const headers = { ...options.headers, ...(keyField.value ? { "X-API-Key": keyField.value } : {}) };
  return ask(path, { ...options, headers });
}

function send(path, body) {
  return request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const minutes = Math.floor(seconds / 60);
  return minutes >= 60 ? `${Math.floor(minutes / 60)} h ${minutes % 60} min` : `${minutes} min ${Math.floor(seconds % 60)} s`;
}

function bytes(value) {
  return value ? `${value >= 2 ** 30 ? `${(value / 2 ** 30).toFixed(1)} GiB` : `${Math.round(value / 2 ** 20)} MiB`}` : "";
}

function showMachine({ cores, load, memory_used: used, memory_total: total, gpus }) {
  const meter = (label, value, max, text) => element("span", {}, `${label} `, element("meter", { min: 0, max, value, "aria-label": label }), ` ${text}`);
  const parts = [meter("CPU", Math.min(load, cores), cores, `load ${load.toFixed(1)} of ${cores}`)];
  if (total) parts.push(meter("Memory", used, total, `${bytes(used)} of ${bytes(total)}`));
  for (const gpu of gpus) parts.push(meter(gpu.name, gpu.load, 100, `${gpu.load} %`), meter("GPU memory", gpu.used, gpu.total, `${bytes(gpu.used)} of ${bytes(gpu.total)}`));
  find("machine").replaceChildren(...parts);
}

/** What is known of the step: before the first line of the log that is nothing. */
function stepText({ step, steps, state }) {
  if (!step && state === "training") return "none logged yet";
  return steps ? `${step.toLocaleString("en")} of ${steps.toLocaleString("en")}` : step.toLocaleString("en");
}

const STATES = { training: "training", elsewhere: "training elsewhere", finished: "finished", stopped: "stopped" };

const TEXTS = 7;

/** The row of a run, without its texts. It stays while the run is there, so that no click is lost. */
function newRow(name) {
  const box = element("input", { type: "checkbox", "aria-label": `Curves of ${name}` });
  box.addEventListener("change", () => {
    ticked[box.checked ? "add" : "delete"](name);
    drawn = "";
    showCurves().catch(fail);
  });
  const open = element("button", { type: "button", onclick: () => openRun(name).catch(fail) }, name);
  const texts = Array.from({ length: TEXTS }, (_, place) => element("td", place ? { class: "number" } : {}));
  const row = element("tr", {}, element("td", {}, box), element("td", {}, open), ...texts);
  row.dataset.run = name;
  return row;
}

function fillRow(row, run) {
  const scores = Object.entries(run.scores).filter(([key]) => key !== "loss").slice(0, SHOWN).map(([key, value]) => `${key} ${short(value)}`).join(" · ");
  const problem = known.problems[run.name], speed = run.speed ? `${short(run.speed)} ${run.unit}/s` : "";
  const texts = [STATES[run.state] + (problem ? `: ${problem}` : ""), stepText(run), short(run.loss), scores, speed, bytes(run.memory), time(run.left)];
  texts.forEach((text, place) => {
    const cell = row.cells[place + 2];
    if (cell.textContent !== text) cell.textContent = text;
  });
  row.querySelector("input").checked = ticked.has(run.name);
  row.classList.toggle("chosen", run.name === opened);
  return row;
}

/** Shows the list. If rows move, the focus stays on the same control of the same run. */
function showRuns() {
  const body = find("runs").tBodies[0], there = Object.fromEntries([...body.rows].map(row => [row.dataset.run, row]));
  const wanted = known.runs.map(run => fillRow(there[run.name] ?? newRow(run.name), run)), active = document.activeElement;
  if (wanted.length !== body.rows.length || wanted.some((row, place) => body.rows[place] !== row)) {
    body.replaceChildren(...wanted);
    if (body.contains(active)) active.focus();
  }
  find("none").hidden = known.runs.length > 0;
  renew(find("starting"), known.starting, () => known.starting.map(({ name, problem }) => element("li", problem ? { class: "problem" } : {}, problem ? `${name}: ${problem}` : `${name} is starting`)));
}

async function showCurves() {
  const names = [...ticked].filter(name => known.runs.some(run => run.name === name));
  const state = JSON.stringify([names, names.map(name => known.runs.find(run => run.name === name).age < 10 ? Date.now() : 0), find("score").value, find("scale").value]);
  if (state === drawn) return;
  drawn = state;
  const query = names.map(name => `run=${encodeURIComponent(name)}`).join("&");
  const found = names.length ? await request(`api/curves?${query}`) : {};
  chooseScores(found);
  const lines = (panel, pick) => names.flatMap((name, number) => Object.entries(found[name]?.[panel] ?? {}).filter(([key]) => pick(key)).map(([key, points]) => ({ label: name, number, points, faint: panel === "loss" && key === "train" })));
  const loss = names.some(name => found[name]?.loss.valid) ? "loss: validation strong, training faint" : "training loss";
  const strong = lines("loss", () => true).map(line => ({ ...line, faint: line.faint && Boolean(found[line.label].loss.valid) }));
  const score = find("score").value, units = [...new Set(names.map(name => known.runs.find(run => run.name === name).unit))];
  find("charts").replaceChildren(
    chart(loss, strong, find("scale").value === "log"),
    chart(score ? `validation ${score}` : "validation score", lines("score", key => key === score)),
    chart("learning rate", lines("rate", () => true)),
    chart(units.length === 1 && units[0] ? `speed (${units[0]} per second)` : "speed (per second)", lines("speed", () => true)));
  await showDifferences(names, query);
}

/** Offers the scores that the runs have. */
function chooseScores(found) {
  const keys = [...new Set(Object.values(found).flatMap(panels => Object.keys(panels.score)))], field = find("score");
  if (keys.join() === [...field.options].map(option => option.value).join()) return;
  const before = field.value;
  field.replaceChildren(...keys.map(key => element("option", { value: key }, key)));
  if (keys.includes(before)) field.value = before;
}

async function showDifferences(names, query) {
  find("differences").hidden = names.length < 2;
  if (names.length < 2) return;
  const { differences } = await request(`api/differences?${query}`), table = find("differences").querySelector("table");
  table.tHead.replaceChildren(element("tr", {}, ...["Setting", ...names].map(text => element("th", { scope: "col" }, text))));
  rows(table, differences.map(({ key, values }) => cells(key, ...values)));
}

function fail(error) {
  find("key-label").hidden = find("key-label").hidden && !/key/i.test(error.message);
  showStatus(sentence(error.message), true);
  failing = true;
}

async function refresh() {
  if (asked) return;
  asked = true;
  try {
    const before = known;
    known = await request("api/runs");
    controlled = known.control;
    if (!before) {
      for (const { name } of known.runs.slice(0, SHOWN)) ticked.add(name);
      opened ||= known.runs[0]?.name ?? "";
      if (controlled) showRecipes(await request("api/recipes"));
    }
    find("key-label").hidden = !controlled && !keyField.value;
    find("folder").textContent = known.folder;
    for (const id of ["train", "compare"]) find(id).hidden = !controlled;
    if (failing) showStatus("");
    failing = false;
    showMachine(known.machine);
    showRuns();
    await showCurves();
    if (known.runs.some(({ name }) => name === opened)) await showRun();
  } catch (error) {
    fail(error);
  } finally {
    asked = false;
  }
}

keyField.addEventListener("change", () => {
  sessionStorage.setItem("weft-key", keyField.value);
  refresh();
});
for (const id of ["score", "scale"]) find(id).addEventListener("change", () => showCurves().catch(fail));
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, EVERY);
