"use strict";
// A new run: a file is uploaded or named, checked, and trained on for some time.

function orderStatus(text, wrong = false) {
  find("order-status").textContent = text;
  find("order-status").classList.toggle("problem", wrong);
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

function showReport({ pairs, more, words, longest, remarks, examples }) {
  const number = value => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const facts = `${more ? "The first " : ""}${number(pairs)} pairs, with ${number(words[0])} and ${number(words[1])} words on average, at most ${number(longest[0])} and ${number(longest[1])}.`;
  const found = remarks.length ? remarks.map(text => element("li", {}, sentence(text))) : [element("li", {}, "Nothing looks wrong.")];
  const table = element("table", {}, element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "Source"), element("th", { scope: "col" }, "Target"))),
    element("tbody", {}, ...examples.map(pair => cells(...pair))));
  find("report").replaceChildren(element("p", {}, facts), element("ul", {}, ...found),
    element("div", { class: "wide", role: "region", "aria-label": "The first pairs", tabindex: 0 }, table));
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
