// The panel of one explanation: its texts, attention, n best translations and beam tree.

const USES = { cross: "cross-attention", encoder: "encoder self-attention", causal: "decoder self-attention", target: "decoder self-attention" };

class Panel {
  constructor(explanation, settings) {
    Object.assign(this, { explanation, settings });
    this.message = element("p", { class: "message", "aria-live": "polite" });
    const tell = text => { this.message.textContent = text; };
    this.views = { map: new HeatMap(tell), lines: new Lines(tell), steps: new Steps(tell) };
    this.stage = element("div", { class: "stage" });
    this.thumbs = element("div", { class: "thumbs", role: "group", "aria-label": "heads" });
    this.controls = element("div", { class: "controls" });
    this.note = element("p", { class: "note" });
    this.box = element("section", { class: "panel" }, ...this.head(tell), ...this.attention(), this.message, ...this.inside(), ...this.rest(tell));
  }

  head(tell) {
    const { run, model, score, forced, sides, notes, languages } = this.explanation;
    const text = (side, lang) => element("p", { class: "text", dir: side.rtl ? "rtl" : "ltr", lang }, side.text);
    return [
      element("h2", {}, run ? `${run} (${model})` : model),
      text(sides.source, languages[0]), text(sides.target, languages[1]),
      element("p", { class: "faint" }, `${forced ? "given target; " : ""}score ${score.toFixed(3)}`),
      tokenRow(this.explanation, tell),
      ...notes.map(note => element("p", { class: "note" }, note)),
    ];
  }

  attention() {
    if (!this.explanation.maps.length) return [];
    return [element("h3", {}, "Attention"), this.controls, this.thumbs, this.note, this.stage];
  }

  inside() {
    if (!this.explanation.inside) return [];
    const view = new InsideView(this.explanation.inside);
    view.show();
    return [element("h3", {}, "Inside"), view.box];
  }

  rest(tell) {
    const { forced, tree, best, passes } = this.explanation, parts = [];
    if (forced) parts.push(element("h3", {}, "Where the model would have differed"), continuations(this.explanation));
    if (best.length) parts.push(element("h3", {}, forced ? "The model's own translations" : "Best translations"), tableOf(["score", "translation"], best.map(({ text, score }) => [score, text])));
    if (passes.length) return [...parts, element("h3", {}, "What was written in each pass"), ...writingPasses(passes)];
    parts.push(element("h3", {}, "Beam tree"));
    if (tree.length) parts.push(element("p", { class: "note" }, "Each column is a step, with the best hypothesis on top. Dashed hypotheses were dropped; point at one, or move to it with the arrow keys, to see why."), beamTree(this.explanation, tell));
    else parts.push(element("p", { class: "note" }, "There is no tree without a beam. The tokens above show what else was likely."));
    return parts;
  }

  uses() {
    return Object.keys(USES).filter(use => this.explanation.maps.some(map => map.use === use));
  }

  // The maps and layer that the settings select, or the nearest that this model has.
  selection() {
    const uses = this.uses(), use = uses.includes(this.settings.use) ? this.settings.use : uses[0];
    const layers = this.explanation.maps.filter(map => map.use === use);
    return { use, layers, layer: Math.min(this.settings.layer, layers.length - 1) };
  }

  async show() {
    if (!this.explanation.maps.length) return;
    const { use, layers, layer } = this.selection(), map = layers[layer];
    await unpack(map);
    this.showControls(use, layers, layer);
    this.showThumbs(map);
    const { tokens } = this.explanation.sides[map.columns];
    const space = !this.settings.words && tokens.some(token => token.includes("▁")) ? " ▁ is a space before a token." : "";
    this.note.textContent = `${map.kind}, ${map.how}${map.note ? `: ${map.note}` : ""}. Colours follow the square root of the weight, so that small weights can be seen.${space}`;
    const { words, view } = this.settings, current = this.views[view];
    const rows = this.explanation.sides[map.rows], columns = this.explanation.sides[map.columns], matrix = oneHead(map, this.headOf(map));
    const labels = side => ({ names: words ? side.names : side.tokens, rtl: side.rtl });
    this.views.steps.stop();
    this.message.textContent = "";
    this.stage.replaceChildren(current.box ?? current.canvas);
    current.show(words ? joinWords(matrix, rows.words, columns.words) : matrix, labels(rows), labels(columns), this.stage.clientWidth || 600);
  }

  headOf(map) {
    const { head } = this.settings;
    return typeof head === "number" ? Math.min(head, map.shape[0] - 1) : head;
  }

  showControls(use, layers, layer) {
    const choice = (label, options, chosen, change) => element("select", { "aria-label": label, onchange: event => change(event.target.value) },
      ...options.map(([value, text]) => element("option", value === chosen ? { value, selected: "" } : { value }, text)));
    const { settings } = this;
    const view = (name, text) => element("button", { type: "button", "aria-pressed": settings.view === name, onclick: () => settings.set({ view: name }) }, text);
    refill(this.controls,
      choice("kind of attention", this.uses().map(name => [name, USES[name]]), use, value => settings.set({ use: value, layer: 0 })),
      choice("layer", layers.map((map, i) => [String(i), map.title]), String(layer), value => settings.set({ layer: Number(value) })),
      view("map", "heat map"), view("lines", "lines"), view("steps", "step by step"),
      element("button", { type: "button", "aria-pressed": settings.words, onclick: () => settings.set({ words: !settings.words }) }, "words"));
  }

  showThumbs(map) {
    const chosen = this.headOf(map), { rtl } = this.explanation.sides[map.columns];
    const heads = map.shape[0] > 1 ? ["mean", "max", ...Array.from({ length: map.shape[0] }, (_, h) => h)] : ["mean"];
    this.thumbs.hidden = heads.length === 1;
    refill(this.thumbs, ...heads.map(head => element("button", {
      type: "button", class: "thumb", "aria-pressed": head === chosen, onclick: () => this.settings.set({ head }),
    }, paint(oneHead(map, head), rtl), typeof head === "number" ? `head ${head + 1}` : head)));
    rove(this.thumbs, [...this.thumbs.children], heads.indexOf(chosen));
  }
}
