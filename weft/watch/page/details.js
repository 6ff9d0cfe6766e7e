"use strict";
// One run: its samples, notes and settings; stopping, resuming and trying it; and two runs side by side.

let opened = "", details = null;

function cells(...texts) {
  return element("tr", {}, ...texts.map(text => element("td", { dir: "auto" }, text)));
}

function rows(table, found) {
  table.tBodies[0].replaceChildren(...found);
}

async function openRun(name, moved = true) {
  opened = name;
  await showRun();
  if (moved) find("detail-title").scrollIntoView({ block: "nearest" });
}

async function showRun() {
  if (!opened) return;
  const name = opened, found = await request(`api/run?run=${encodeURIComponent(name)}`);
  if (name !== opened) return;
  const chosen = find("sample-step").value, newest = details?.name === name && find("sample-step").selectedIndex > 0;
  details = found;
  find("detail").hidden = false;
  find("detail-title").textContent = name;
  const steps = [...found.samples].reverse().map(({ step }) => step);
  renew(find("sample-step"), steps, () => steps.map(step => element("option", { value: step }, step.toLocaleString("en"))));
  if (newest && found.samples.some(({ step }) => String(step) === chosen)) find("sample-step").value = chosen;
  showSamples();
  renew(find("notes"), found.notes, () => [found.notes.join("\n")]);
  renew(find("settings").tBodies[0], found.settings, () => Object.entries(found.settings).map(([key, value]) => cells(key, value)));
  showButtons(found);
}

function showSamples() {
  const block = details.samples.find(({ step }) => String(step) === find("sample-step").value);
  renew(find("samples").tBodies[0], block ?? null, () => (block?.texts ?? []).map(({ source, reference, output }) => cells(source, reference, output)));
}

function showButtons({ name, state, task }) {
  const button = (text, path) => element("button", { type: "button", onclick: () => change(path, name) }, text);
  const wanted = !controlled ? "" : state === "training" ? "stop" : state === "elsewhere" ? "" : "resume";
  const box = find("buttons"), titles = { stop: "Stop and save", resume: "Resume" };
  if (box.dataset.wanted !== name + wanted) box.replaceChildren(...(wanted ? [button(titles[wanted], `api/${wanted}`)] : []));
  box.dataset.wanted = name + wanted;
  find("try").hidden = !controlled || ["captioning", "transcription"].includes(task);
  if (find("try-answer").dataset.run !== name) find("try-answer").textContent = "";
}

/** Changes something on the server, and shows the runs as they are then. */
async function change(path, name) {
  try {
    await send(path, { run: name });
    mention(path.endsWith("stop") ? `${name} finishes its step, saves a checkpoint and stops.` : `${name} starts again, which takes some seconds.`);
  } catch (error) {
    showStatus(sentence(error.message), true);
  }
  await refresh();
}

async function tryRun(event) {
  event.preventDefault();
  const answer = find("try-answer"), name = opened;
  answer.dataset.run = name;
  answer.classList.remove("problem");
  answer.textContent = "The model is loaded, which takes some seconds …";
  try {
    answer.textContent = (await send("api/try", { run: name, text: find("try-text").value })).text || "(an empty answer)";
  } catch (error) {
    answer.textContent = sentence(error.message);
    answer.classList.add("problem");
  }
}

async function compareRuns() {
  const [run, other] = ticked;
  const status = find("compare-status");
  status.classList.remove("problem");
  if (!other || ticked.size > 2) {
    status.textContent = "Tick two runs first.";
    return;
  }
  find("compare-button").disabled = true;
  find("compared").hidden = true;
  status.textContent = "Both runs decode the validation data …";
  try {
    let found = await send("api/compare", { run, other });
    while (found.state === "running") {
      await new Promise(done => setTimeout(done, 1000));
      found = await send("api/compare", { run, other });
    }
    showComparison(run, other, found);
    status.textContent = `${found.inputs.toLocaleString("en")} inputs are compared.`;
  } catch (error) {
    status.textContent = sentence(error.message);
    status.classList.add("problem");
  } finally {
    find("compare-button").disabled = false;
  }
}

function showComparison(run, other, { report, rows: found }) {
  const tested = report.comparison.metrics;
  const verdicts = Object.entries(report.metrics).map(([name, { value, higher_is_better: high }]) => {
    const { baseline, delta, ci, p } = tested[name];
    const sure = p < .05 ? `${delta > 0 === (high ?? true) ? run : other} is significantly better` : "no significant difference";
    return `${name}: ${run} ${value.toFixed(2)}, ${other} ${baseline.toFixed(2)}; ${sure} (${delta.toFixed(2)}, 95 % ${ci[0].toFixed(2)} to ${ci[1].toFixed(2)}, p = ${p.toFixed(3)}, ${report.comparison.test})`;
  });
  find("verdicts").replaceChildren(...verdicts.map(text => element("li", {}, text)));
  const heads = ["Source", "Reference", run, other].map(text => element("th", { scope: "col" }, text));
  find("pairs").tHead.replaceChildren(element("tr", {}, ...heads));
  rows(find("pairs"), found.map(({ source, reference, outputs }) => cells(source, reference, ...outputs)));
  find("compared").hidden = false;
}

find("sample-step").addEventListener("change", showSamples);
find("try").addEventListener("submit", tryRun);
find("compare-button").addEventListener("click", compareRuns);
