// The page: the current sentence, settings, keys and theme. Models shown side by side share the settings.

const groups = JSON.parse(document.getElementById("data").textContent);
const panels = [];
const settings = {
  sentence: 0, use: "cross", layer: 0, head: "mean", view: "map", words: false,
  set(changes) {
    Object.assign(this, changes);
    panels.forEach(panel => panel.show());
  },
};

function find(id) {
  return document.getElementById(id);
}

function showSentence(number) {
  settings.sentence = Math.max(0, Math.min(groups.length - 1, number));
  find("sentence").value = String(settings.sentence);
  panels.splice(0, panels.length, ...groups[settings.sentence].map(explanation => new Panel(explanation, settings)));
  find("panels").replaceChildren(...panels.map(panel => panel.box));
  settings.set({});
}

function layerCount() {
  return Math.max(1, ...panels.filter(panel => panel.explanation.looks.length).map(panel => panel.selection().layers.length));
}

function turnHead(by) {
  const count = Math.max(1, ...panels.flatMap(panel => panel.explanation.looks.map(map => map.shape[0])));
  const heads = ["mean", "max", ...Array.from({ length: count }, (_, head) => head)];
  settings.set({ head: heads[(heads.indexOf(settings.head) + by + heads.length) % heads.length] });
}

function turnTheme() {
  const root = document.documentElement, order = [undefined, "light", "dark"];
  const next = order[(order.indexOf(root.dataset.theme) + 1) % order.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  settings.set({});
}

function toggleHelp() {
  find("keys").hidden = !find("keys").hidden;
  find("help").setAttribute("aria-expanded", String(!find("keys").hidden));
}

const KEYS = {
  n: () => showSentence(settings.sentence + 1), p: () => showSentence(settings.sentence - 1),
  m: () => settings.set({ view: "map" }), l: () => settings.set({ view: "lines" }), s: () => settings.set({ view: "steps" }),
  w: () => settings.set({ words: !settings.words }),
  "[": () => turnHead(-1), "]": () => turnHead(1),
  ",": () => settings.set({ layer: Math.max(0, settings.layer - 1) }),
  ".": () => settings.set({ layer: Math.min(layerCount() - 1, settings.layer + 1) }),
  t: turnTheme, "?": toggleHelp,
};

document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
  KEYS[event.key]?.();
});
find("theme").addEventListener("click", turnTheme);
find("help").addEventListener("click", toggleHelp);
find("sentence").addEventListener("change", event => showSentence(Number(event.target.value)));
find("sentence").append(...groups.map(([first], i) => element("option", { value: i }, `${i + 1}: ${first.sides.source.text.slice(0, 60)}`)));
find("choose").hidden = groups.length < 2;
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => settings.set({}));
window.addEventListener("resize", () => settings.set({}));
if (groups.length) showSentence(0);
