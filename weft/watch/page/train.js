"use strict";
// A new run: a file is uploaded or named, checked, and trained on for some time.

function orderStatus(text, wrong = false) {
  find("order-status").textContent = text;
  find("order-status").classList.toggle("problem", wrong);
}

/** Offers the recipes, with what each of them is. */
function showRecipes(found) {
  const options = Object.entries(found).map(([name, summary]) => element("option", { value: name }, `${name}: ${summary}`));
  find("recipe").replaceChildren(...options);
  find("recipe").value = "auto";
}

async function uploadData() {
  const [file] = find("upload").files;
  if (!file) return;
  orderStatus(`Uploading ${file.name} …`);
  try {
    const { data } = await request(`api/upload?name=${encodeURIComponent(file.name)}`, { method: "POST", body: file });
    find("data").value = data;
    if (!find("name").value) find("name").value = file.name.replace(/\..*$/, "").replace(/[^\w.-]+/g, "-").replace(/^[.-]+/, "");
    await checkData();
  } catch (error) {
    orderStatus(sentence(error.message), true);
  }
}

async function checkData() {
  find("report").hidden = true;
  orderStatus("Checking the data …");
  try {
    showReport(await send("api/check", { data: find("data").value }));
    orderStatus("");
  } catch (error) {
    orderStatus(sentence(error.message), true);
  }
}

function showReport({ pairs, found, languages, words, counts, examples, about, misaligned_stretches: stretches }) {
  const number = value => value.toLocaleString("en");
  const sides = ["source", "target"].map((side, place) => {
    const labels = Object.entries(languages[place].labels).filter(([, share]) => share >= .005).map(([label, share]) => `${label} ${Math.round(100 * share)} %`).join(", ") || "unknown";
    return `${side}: language ${labels}; half of the texts have at most ${number(words[place]["50"])} words, the longest has ${number(words[place]["100"])}`;
  });
  const findings = Object.entries(counts).filter(([, count]) => count).map(([name, count]) => {
    const [first] = examples[name] ?? [];
    return `${number(count)} ${name.replaceAll("_", " ")}: ${about[name] ?? ""}${first ? `; for example: ${first.join(" | ")}` : ""}`;
  });
  findings.push(...stretches.map(([first, last]) => `pairs ${number(first)} to ${number(last)} seem to be misaligned; a line may be missing on one side`));
  const items = [...sides, ...(findings.length ? findings : ["nothing looks wrong"])].map(text => element("li", { dir: "auto" }, sentence(text)));
  find("report").replaceChildren(element("p", {}, `${number(pairs)} pairs, ${number(found)} with a finding.`), element("ul", {}, ...items));
  find("report").hidden = false;
}

async function startTraining(event) {
  event.preventDefault();
  const order = Object.fromEntries(["data", "name", "time", "recipe"].map(id => [id, find(id).value]));
  orderStatus("Starting …");
  try {
    await send("api/train", order);
    orderStatus(`${order.name} is starting. It appears among the runs as soon as its data is read.`);
    ticked.add(order.name);
    opened = order.name;
  } catch (error) {
    orderStatus(sentence(error.message), true);
  }
  await refresh();
}

find("upload").addEventListener("change", uploadData);
find("check").addEventListener("click", checkData);
find("order").addEventListener("submit", startTraining);
