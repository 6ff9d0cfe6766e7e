// One explanation: the text, what it looks at, the n best, the tree.

const USES = { cross: "at the source", encoder: "among source tokens", causal: "at what was written" };

class Panel {
  constructor(explanation, settings) {
    Object.assign(this, { explanation, settings });
    this.told = element("p", { class: "told", "aria-live": "polite" });
    const tell = text => { this.told.textContent = text; };
    this.views = { map: new HeatMap(tell), lines: new Lines(tell), steps: new Steps(tell) };
    this.stage = element("div", { class: "stage" });
    this.thumbs = element("div", { class: "thumbs", role: "group", "aria-label": "heads" });
    this.controls = element("div", { class: "controls" });
    this.note = element("p", { class: "note" });
    this.box = element("section", { class: "panel" }, ...this.head(tell), ...this.attention(), this.told, ...this.rest(tell));
  }

  head(tell) {
    const { run, model, score, forced, sides, notes } = this.explanation;
    const text = side => element("p", { class: "text", dir: side.rtl ? "rtl" : "ltr" }, side.text);
    return [
      element("h2", {}, run ? `${run} (${model})` : model),
      text(sides.source), text(sides.target),
      element("p", { class: "faint" }, `${forced ? "given, not chosen; " : ""}score ${score.toFixed(3)}`),
      tokenRow(this.explanation, tell),
      ...notes.map(note => element("p", { class: "note" }, note)),
    ];
  }

  attention() {
    if (!this.explanation.looks.length) return [];
    return [element("h3", {}, "What is looked at"), this.controls, this.thumbs, this.note, this.stage];
  }

  rest(tell) {
    const { forced, tree, best } = this.explanation, parts = [];
    if (forced) parts.push(element("h3", {}, "Where the model would have gone instead"), otherWays(this.explanation));
    if (best.length) parts.push(element("h3", {}, forced ? "What it writes by itself" : "The best found"), bestTable(this.explanation));
    parts.push(element("h3", {}, "Beam tree"));
    if (tree.length) parts.push(element("p", { class: "note" }, "Each column is a step, the best on top; dashed: dropped. Point at one to see why."), beamTree(this.explanation, tell));
    else parts.push(element("p", { class: "note" }, "One hypothesis at a time: no beam, so no tree. Each token above says what else was likely."));
    return parts;
  }

  uses() {
    return Object.keys(USES).filter(use => this.explanation.looks.some(look => look.use === use));
  }

  // The look that the settings ask for, as near as this model has it.
  look() {
    const uses = this.uses(), use = uses.includes(this.settings.use) ? this.settings.use : uses[0];
    const layers = this.explanation.looks.filter(look => look.use === use);
    return { use, layers, layer: Math.min(this.settings.layer, layers.length - 1) };
  }

  async show() {
    if (!this.explanation.looks.length) return;
    const { use, layers, layer } = this.look(), look = layers[layer];
    await unpack(look);
    this.showControls(use, layers, layer);
    this.showThumbs(look);
    this.note.textContent = `${look.kind}, ${look.how}${look.note ? `: ${look.note}` : ""}`;
    const { words, view } = this.settings, shown = this.views[view];
    const rows = alongside(this.explanation, look, "rows", words), columns = alongside(this.explanation, look, "columns", words);
    this.views.steps.stop();
    this.stage.replaceChildren(shown.box ?? shown.canvas);
    shown.show(matrixOf(this.explanation, look, this.headOf(look), words), rows, columns, this.stage.clientWidth || 600);
  }

  headOf(look) {
    const { head } = this.settings;
    return typeof head === "number" ? Math.min(head, look.shape[0] - 1) : head;
  }

  showControls(use, layers, layer) {
    const choice = (label, options, chosen, change) => element("select", { "aria-label": label, onchange: event => change(event.target.value) },
      ...options.map(([value, text]) => element("option", value === chosen ? { value, selected: "" } : { value }, text)));
    const { settings } = this;
    const view = (name, text) => element("button", { type: "button", "aria-pressed": settings.view === name, onclick: () => settings.set({ view: name }) }, text);
    this.controls.replaceChildren(
      choice("kind of look", this.uses().map(name => [name, USES[name]]), use, value => settings.set({ use: value, layer: 0 })),
      choice("layer", layers.map((look, i) => [String(i), look.title]), String(layer), value => settings.set({ layer: Number(value) })),
      view("map", "map"), view("lines", "lines"), view("steps", "step by step"),
      element("button", { type: "button", "aria-pressed": settings.words, onclick: () => settings.set({ words: !settings.words }) }, "words"));
  }

  showThumbs(look) {
    const chosen = this.headOf(look), rtl = alongside(this.explanation, look, "columns", false).rtl;
    const heads = look.shape[0] > 1 ? ["mean", "max", ...Array.from({ length: look.shape[0] }, (_, h) => h)] : ["mean"];
    this.thumbs.hidden = heads.length === 1;
    this.thumbs.replaceChildren(...heads.map(head => element("button", {
      type: "button", class: "thumb", "aria-pressed": head === chosen, onclick: () => this.settings.set({ head }),
    }, paint(oneHead(look, head), rtl), typeof head === "number" ? `head ${head + 1}` : head)));
  }
}
