// The page: the current sentence, settings, keys and theme. Models shown side by side share the settings.

const groups = JSON.parse(find("data").textContent);
const panels = [];
const settings = {
  sentence: 0, use: "cross", layer: 0, head: "mean", view: "map", words: false,
  set(changes) {
    Object.assign(this, changes);
    panels.forEach(panel => panel.show());
  },
};

function showSentence(number) {
  settings.sentence = Math.max(0, Math.min(groups.length - 1, number));
  find("sentence").value = String(settings.sentence);
  panels.splice(0, panels.length, ...groups[settings.sentence].map(explanation => new Panel(explanation, settings)));
  find("panels").replaceChildren(...panels.map(panel => panel.box));
  settings.set({});
}

function turnLayer(by) {
  const counts = panels.filter(panel => panel.explanation.maps.length).map(panel => panel.selection().layers.length);
  settings.set({ layer: Math.max(0, Math.min(Math.max(1, ...counts) - 1, settings.layer + by)) });
}

function turnHead(by) {
  const count = Math.max(1, ...panels.flatMap(panel => panel.explanation.maps.map(map => map.shape[0])));
  const heads = ["mean", "max", ...Array.from({ length: count }, (_, head) => head)];
  settings.set({ head: heads[(heads.indexOf(settings.head) + by + heads.length) % heads.length] });
}

function turnTheme() {
  root.dataset.theme = { system: "light", light: "dark", dark: "system" }[root.dataset.theme ?? "system"];
  showTheme();
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
  ",": () => turnLayer(-1), ".": () => turnLayer(1),
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
darkSystem.addEventListener("change", () => settings.set({}));
window.addEventListener("resize", () => settings.set({}));
if (groups.length) showSentence(0);
