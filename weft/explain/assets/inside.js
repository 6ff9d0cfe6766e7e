// Every step of a prediction: tables of numbers, the formula of each cell with the numbers put in, and where it comes from.

const SHOWN_TERMS = 4, STEP_TIME = 1600;

// The numbers of all steps: deflated, first the lowest byte of each, last the highest.
async function unpackNumbers(data) {
  const bytes = Uint8Array.from(atob(data.numbers), character => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer()), count = data.count, bits = new Uint32Array(count);
  for (let i = 0; i < count; i++) {
    bits[i] = planes[i] | planes[count + i] << 8 | planes[2 * count + i] << 16 | planes[3 * count + i] << 24;
  }
  return new Float32Array(bits.buffer);
}

function numberText(value) {
  if (Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const size = Math.abs(value), digits = Number.isInteger(value) ? 0 : size >= 100 ? 1 : size >= 10 ? 2 : size >= 0.001 ? 3 : 5;
  if (value && size < 0.00001) return value.toExponential(0).replaceAll("-", "−");
  return value.toFixed(digits).replace(/^-(?=0\.?0*$)/, "").replace("-", "−");
}

// A number in a table, where all have three decimals; whole numbers alone have none.
function cellText(value, whole) {
  if (whole || !Number.isFinite(value)) return numberText(value);
  const size = Math.abs(value), text = value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return text.replace(/^-(?=0\.0*$)/, "").replace("-", "−");
}

// An array with named axes: of a step, or of what its formula reads. Long axes are cut; `sizes` are the true ones.
class NamedArray {
  constructor(numbers, { axes, sizes, values }) {
    Object.assign(this, { axes, sizes });
    if (!values) return;
    [this.offset, this.shape] = values;
    this.numbers = numbers;
  }

  extent(axis) {
    return this.shape[this.axes.indexOf(axis)];
  }

  // The number at {axis: place}; NaN if it is not among those that are shown.
  at(places) {
    let index = 0;
    for (let i = 0; i < this.axes.length; i++) {
      const place = this.shape[i] === 1 ? 0 : places[this.axes[i]];
      if (place === undefined || place >= this.shape[i]) return NaN;
      index = index * this.shape[i] + place;
    }
    return this.numbers[this.offset + index];
  }
}

const SIGNS = { "+": "+", "-": "−", "*": "·", "/": "/", "**": "^" };

// The operation of a formula, what it is applied to, and the axes it runs over.
function partsOf([kind, ...rest]) {
  return { kind, given: rest.filter(Array.isArray), axes: rest.find(each => each.axes)?.axes ?? [], value: rest[0] };
}

// How strongly an operation binds; what binds more weakly than its surroundings is in parentheses.
const BINDS = { sum: 1, "+": 1, "-": 1, "*": 2, "/": 2, prod: 2, negative: 2, "**": 3 };

function enclosed(text, kind, level) {
  return (BINDS[kind] ?? 9) < level ? `(${text})` : text;
}

// The operands of an operation by `write`, which gets how strongly it binds.
function operandTexts(kind, given, write) {
  const own = BINDS[kind] ?? 0;
  return given.map((each, i) => write(each, own + (i && (kind === "-" || kind === "/" || kind === "**") ? 1 : 0)));
}

// A formula without numbers.
function formulaText(node, level = 0) {
  const { kind, given, axes, value } = partsOf(node), texts = () => operandTexts(kind, given, formulaText);
  if (kind === "number") return numberText(value);
  if (kind === "name") return value === "inf" ? "∞" : value;
  if (kind === "negative") return `−${texts()}`;
  if (kind in SIGNS) return enclosed(texts().join(` ${SIGNS[kind]} `), kind, level);
  if (kind === "row") return `the row of ${texts().join(" for ")}`;
  if (kind === "where") return `${texts()[1]} where ${texts()[0]}, otherwise ${texts()[2]}`;
  if (kind === "sum") return enclosed(`Σ over ${axes.join(", ")} of ${formulaText(given[0], 2)}`, kind, level + 1);
  if (kind === "standardize") return `(${texts()[0]} − its mean) / √(its variance + ε)`;
  if (kind === "join") return `[${texts().join("; ")}]`;
  return `${kind}(${texts().join(", ")}${axes.length ? ` over ${axes.join(", ")}` : ""})`;
}

// Writes the formula of one cell with its numbers, and notes the cells that it reads: [name, places].
class CellFormula {
  constructor(operands, statistics) {
    Object.assign(this, { operands, statistics, reads: [] });
  }

  text(node, places, level = 0) {
    const { kind, given, axes, value } = partsOf(node);
    if (kind === "number") return numberText(value);
    if (kind === "name") return this.named(value, places, level);
    if (kind === "negative") return `−${this.text(given[0], places, 2)}`;
    if (kind === "row") return `row ${this.text(given[1], places)} of the table`;
    if (kind === "where") return this.chosen(given, places);
    if (kind === "standardize") return this.standardized(given[0], axes, places);
    if (kind === "join") return this.joined(given, axes[0], places);
    if (kind === "softmax") return `exp(${this.text(given[0], places)}) / (${this.terms(["exp", given[0]], axes, places, " + ")})`;
    if (kind === "max") return `max(${this.terms(given[0], axes, places, ", ")})`;
    if (kind === "largest") return `1 if ${this.text(given[0], places)} is the largest of ${this.terms(given[0], axes, places, ", ")}, otherwise 0`;
    if (kind === "norm") return `√(${this.terms(["**", given[0], ["number", 2]], axes, places, " + ")})`;
    if (!(kind in SIGNS || kind === "sum" || kind === "prod")) return `${kind}(${given.map(each => this.text(each, places)).join(", ")})`;
    const text = kind in SIGNS ? operandTexts(kind, given, (each, inner) => this.text(each, places, inner)).join(` ${SIGNS[kind]} `)
      : this.terms(given[0], axes, places, kind === "sum" ? " + " : " · ", BINDS[kind]);
    return enclosed(text, kind, level);
  }

  named(name, places, level) {
    if (name === "inf") return "∞";
    const operand = this.operands[name];
    if (typeof operand === "number") return numberText(operand);
    this.reads.push([name, places]);
    const value = operand.at(places), text = numberText(value);
    return level && value < 0 ? `(${text})` : text;
  }

  chosen([condition, yes, no], places) {
    const visible = this.operands[condition[1]].at(places);
    this.reads.push([condition[1], places]);
    return visible ? `visible: ${this.text(yes, places)}` : `hidden: ${this.text(no, places)}`;
  }

  standardized(node, axes, places) {
    this.places(node, axes, places).found.forEach(each => this.reads.push([node[1], each]));
    const [, mean, deviation] = this.statistics(node[1], places) ?? [];
    const shown = value => value === undefined ? "…" : numberText(value);
    return `(${this.text(node, places)} − mean ${shown(mean)}) / deviation ${shown(deviation)}`;
  }

  joined(given, axis, places) {
    let place = places[axis];
    for (const node of given) {
      const operand = this.operands[node[1]], size = operand.sizes[operand.axes.indexOf(axis)];
      if (place < size) return this.text(node, { ...places, [axis]: place });
      place -= size;
    }
    return "…";
  }

  // All places along some axes that are shown, and how many there really are.
  places(node, axes, places) {
    const arrays = namesIn(node).map(name => this.operands[name]).filter(each => each instanceof NamedArray);
    let found = [places], total = 1;
    for (const axis of axes) {
      const holders = arrays.filter(each => each.axes.includes(axis));
      const shown = Math.min(...holders.map(each => each.extent(axis)));
      total *= Math.max(...holders.map(each => each.sizes[each.axes.indexOf(axis)]));
      found = found.flatMap(each => Array.from({ length: shown }, (_, place) => ({ ...each, [axis]: place })));
    }
    return { found, total };
  }

  terms(node, axes, places, sign, level = 0) {
    const { found, total } = this.places(node, axes, places);
    const kept = found.map(each => this.text(node, each, level)).slice(0, SHOWN_TERMS), more = total - kept.length;
    return kept.join(sign) + (more > 0 ? `${sign}… (${more} more)` : "");
  }
}

function namesIn(node) {
  const { kind, given, value } = partsOf(node);
  return kind === "name" ? [value] : given.flatMap(namesIn);
}

// The steps one by one, with the tables that a step is computed from below its own.
class InsideView {
  constructor(data) {
    Object.assign(this, { data, at: 0, head: 0, position: 0, timer: null });
    this.formula = element("p", { class: "formula" });
    this.message = element("p", { class: "message cell", "aria-live": "polite" });
    this.controls = element("div", { class: "controls" });
    const help = element("p", { class: "note" }, "Each table is a step. Point at a cell, or move with the arrow keys, to see its formula and where it comes from; b and f go back and forward, space plays.");
    this.names = element("div", { class: "stepnames", role: "toolbar", "aria-label": "steps of this part; move with the arrow keys" });
    this.table = element("div", { class: "numbers" });
    this.sources = element("div", { class: "sources" });
    this.box = element("section", { class: "inside", "aria-label": "inside: every step with its numbers" },
      help, this.controls, this.names, this.formula, this.table, this.message, this.sources);
    this.box.addEventListener("keydown", event => this.key(event));
  }

  async show() {
    if (!this.steps) {
      const numbers = await unpackNumbers(this.data);
      this.steps = this.data.steps.map(step => this.read(step, numbers));
      this.stages = this.data.stages.map((stage, number) => ({ ...stage, number }));
      this.at = this.first();
    }
    this.draw();
  }

  read(step, numbers) {
    const operands = Object.fromEntries(Object.entries(step.operands).map(([name, each]) =>
      [name, typeof each === "number" ? each : Object.assign(new NamedArray(numbers, each), { step: each.step, weights: each.weights })]));
    const axes = step.axes.slice(0, -1);
    const summary = step.summary && new NamedArray(numbers, { axes: [...axes, "statistic"], sizes: step.sizes, values: step.summary });
    return Object.assign(new NamedArray(numbers, step), { title: step.title, labels: step.labels, formula: step.formula, operands, summary });
  }

  // The view opens at attention weights, if there are any: those of the first cross-attention.
  first() {
    const weights = [...this.steps.keys()].filter(number => this.steps[number].title === "weights");
    return weights.find(number => this.stageOf(number).part.startsWith("cross")) ?? weights[0] ?? 0;
  }

  stageOf(number) {
    return this.stages.find(stage => stage.steps.includes(number));
  }

  go(number) {
    this.at = Math.max(0, Math.min(this.steps.length - 1, number));
    this.draw();
  }

  draw() {
    const step = this.steps[this.at];
    this.drawControls(step);
    this.drawNames();
    const cut = step.axes.some((axis, i) => step.shape[i] < step.sizes[i]);
    this.formula.replaceChildren(element("b", {}, step.title), step.formula ? ` = ${formulaText(step.formula)}` : "",
      element("span", { class: "faint" }, ` — ${step.axes.map((axis, i) => `${axis} ${step.sizes[i]}`).join(" × ")}${cut ? ", of which some are shown" : ""}`));
    this.message.textContent = "";
    const fixed = this.fixed(step), grid = this.grid(step, fixed, step.labels, step.title);
    this.table.replaceChildren(grid.box);
    this.grids = new Map();
    const blocks = Object.entries(step.operands).filter(([, operand]) => operand instanceof NamedArray && operand.shape).map(([name, operand]) => {
      const source = operand.step < 0 ? null : this.steps[operand.step], labels = this.labelsOf(operand, source, step);
      const found = this.grid(operand, this.fixed(operand, step), labels, name, true);
      this.grids.set(name, found);
      const from = source ? element("button", { type: "button", class: "link", onclick: () => this.go(operand.step) }, `${this.where(operand.step)}${source.title}`) : element("span", {}, operand.weights ? "weights" : "given");
      return element("div", {}, element("h4", {}, `${name}: `, from), found.box);
    });
    this.sources.replaceChildren(...blocks);
    this.choose(grid, step, null);
  }

  where(number) {
    const here = this.stageOf(this.at), stage = this.stageOf(number);
    return stage === here ? "" : `${[stage.block, stage.part].filter(Boolean).join(", ")}: `;
  }

  labelsOf(operand, source, step) {
    const labels = { ...step.labels };
    if (source) source.axes.forEach((axis, i) => { if (source.labels[axis] && operand.axes.length === source.axes.length) labels[operand.axes[i]] = source.labels[axis]; });
    return labels;
  }

  // The places along axes that a table of rows and columns cannot show.
  fixed(array, step = array) {
    const fixed = {}, rest = array.axes.filter(axis => axis !== "head");
    if (array.axes.includes("head")) fixed.head = Math.min(this.head, array.extent("head") - 1);
    while (rest.length > 2) {
      const axis = rest.find(each => step.axes.includes(each)) ?? rest[0];
      rest.splice(rest.indexOf(axis), 1);
      fixed[axis] = Math.min(this.position, array.extent(axis) - 1);
    }
    return fixed;
  }

  // A shaded table of numbers.
  grid(array, fixed, labels, title, small = false) {
    const free = array.axes.filter(axis => !(axis in fixed)), down = free.length > 1 ? free[0] : null, across = free.at(-1) ?? null;
    const rows = down ? array.extent(down) : 1, columns = across ? array.extent(across) : 1;
    const places = (r, c) => ({ ...fixed, ...(down ? { [down]: r } : {}), ...(across ? { [across]: c } : {}) });
    const name = (axis, place) => labels[axis]?.[place] ?? String(place + 1);
    let largest = 1e-9;
    const values = Array.from({ length: rows }, (_, r) => Array.from({ length: columns }, (_, c) => array.at(places(r, c))));
    const whole = values.flat().every(value => Number.isInteger(value) || !Number.isFinite(value));
    values.flat().filter(Number.isFinite).forEach(value => { largest = Math.max(largest, Math.abs(value)); });
    const statistics = !small && array.summary ? ["norm", "mean", "deviation"] : [];
    const head = element("tr", {}, element("td", { class: "corner" }, `${down ?? ""}${down && across ? " \\ " : ""}${across ?? ""}`),
      ...Array.from({ length: columns }, (_, c) => element("th", { scope: "col" }, element("bdi", {}, across ? name(across, c) : ""))),
      ...(across && array.shape[array.axes.indexOf(across)] < array.sizes[array.axes.indexOf(across)] ? [element("td", { class: "corner" }, "…")] : []),
      ...statistics.map(each => element("th", { scope: "col", class: "statistic" }, each)));
    const cells = values.map((row, r) => row.map((value, c) => this.cell(value, cellText(value, whole), largest, small ? null : [r, c])));
    const body = cells.map((row, r) => element("tr", this.isChosen(down, r) ? { class: "output" } : {}, element("th", { scope: "row" }, element("bdi", {}, down ? name(down, r) : "")), ...row,
      ...(head.children.length > columns + 1 + statistics.length ? [element("td", { class: "corner" }, "…")] : []),
      ...statistics.map((_, s) => element("td", { class: "statistic" }, numberText(array.summary.at({ ...places(r, 0), statistic: s }))))));
    const table = element("table", { role: small ? "table" : "grid", "aria-label": title }, element("thead", {}, head), element("tbody", {}, ...body));
    return { box: element("div", { class: "scroll", ...(small ? { tabindex: 0, role: "group", "aria-label": title } : {}) }, table), cells, places, fixed, free, rows, columns, array };
  }

  isChosen(axis, place) {
    const side = number => this.stageOf(number).block.split(",")[0];
    return ["query", "token"].includes(axis) && place === this.position && side(this.at) === side(this.steps.length - 1);
  }

  cell(value, text, largest, place) {
    const share = Number.isFinite(value) ? 0.5 * Math.sqrt(Math.abs(value) / largest) : 0;
    const cell = element("td", { class: "cell", style: `background: rgba(var(--${value < 0 ? "mark" : "heat"}), ${share.toFixed(3)})` }, text);
    if (!place) return cell;
    const pick = () => this.pick(...place);
    return fill(cell, { role: "gridcell", tabindex: -1, onmouseenter: pick, onfocus: pick }, []);
  }

  choose(grid, step, place) {
    this.current = grid;
    const [r, c] = place ?? [grid.rows > this.position ? this.position : 0, 0];
    grid.cells[r][c].tabIndex = 0;
    this.stopCell = grid.cells[r][c];
    this.pick(r, c);
  }

  // Says how a cell is computed, and marks the cells that it comes from.
  pick(r, c) {
    const step = this.steps[this.at], places = this.current.places(r, c), value = numberText(step.at(places));
    this.stopCell.tabIndex = -1;
    this.stopCell = this.current.cells[r][c];
    this.stopCell.tabIndex = 0;
    this.box.querySelectorAll(".lit, .here").forEach(cell => cell.classList.remove("lit", "here"));
    this.stopCell.classList.add("here");
    const name = `${step.title}[${this.current.free.map(axis => step.labels[axis]?.[places[axis]] ?? places[axis] + 1).join(", ")}]`;
    if (!step.formula) {
      this.message.textContent = `${name} = ${value}`;
      return;
    }
    const formula = new CellFormula(step.operands, (operand, at) => this.statistics(step, operand, at));
    const text = formula.text(step.formula, places).replace(/(^|\(|, )\((−[^() ]+)\)/g, "$1$2");
    this.message.textContent = `${name} = ${text} = ${value}`;
    formula.reads.forEach(([operand, at]) => this.light(operand, at));
  }

  light(name, places) {
    const grid = this.grids.get(name);
    if (!grid || Object.entries(grid.fixed).some(([axis, place]) => places[axis] !== undefined && places[axis] !== place)) return;
    const [down, across] = grid.free.length > 1 ? grid.free : [null, grid.free[0]];
    const row = down === null || grid.rows === 1 ? 0 : places[down], column = across === undefined || grid.columns === 1 ? 0 : places[across];
    grid.cells[row]?.[column]?.classList.add("lit");
  }

  statistics(step, name, places) {
    const operand = step.operands[name], source = operand.step >= 0 ? this.steps[operand.step] : null;
    if (!source?.summary || source.axes.length !== operand.axes.length) return null;
    const at = Object.fromEntries(source.axes.map((axis, i) => [axis, places[operand.axes[i]]]));
    return [0, 1, 2].map(statistic => source.summary.at({ ...at, statistic }));
  }

  drawNames() {
    const stage = this.stageOf(this.at);
    const items = stage.steps.map(number => element("button", { type: "button", "aria-pressed": number === this.at, onclick: () => this.go(number) }, this.steps[number].title));
    refill(this.names, ...items);
    rove(this.names, items, stage.steps.indexOf(this.at));
  }

  drawControls(step) {
    const stage = this.stageOf(this.at), blocks = [...new Set(this.stages.map(each => each.block))];
    const choice = (label, options, chosen, change) => element("select", { "aria-label": label, onchange: event => change(event.target.value) },
      ...options.map(([value, text]) => element("option", String(value) === String(chosen) ? { value, selected: "" } : { value }, text)));
    const inBlock = this.stages.filter(each => each.block === stage.block), same = each => each.part === stage.part;
    const jump = block => this.go((this.stages.find(each => each.block === block && same(each)) ?? this.stages.find(each => each.block === block)).steps[0]);
    const heads = step.axes.includes("head") ? step.extent("head") : 0, positions = this.positions();
    const button = (text, label, action) => element("button", { type: "button", title: label, onclick: action }, text);
    refill(this.controls,
      choice("block or layer", blocks.map(block => [block, block]), stage.block, jump),
      choice("part", inBlock.map(each => [each.number, each.part || "the block itself"]), stage.number, value => this.go(this.stages[value].steps[0])),
      ...(positions.length ? [element("label", {}, "output token ", choice("output token", positions.map((name, i) => [i, `${i + 1}: ${name}`]), this.position, value => { this.position = Number(value); this.draw(); }))] : []),
      ...(heads > 1 ? [element("label", {}, "head ", choice("head", Array.from({ length: heads }, (_, h) => [h, String(h + 1)]), Math.min(this.head, heads - 1), value => { this.head = Number(value); this.draw(); }))] : []),
      button("|←", "to the first step", () => this.turn(-this.at)),
      button("← back", "previous step (b)", () => this.turn(-1)), button("next →", "next step (f)", () => this.turn(1)),
      button(this.timer ? "stop" : "play", "play the steps (space)", () => this.run()));
  }

  // The names of the positions that one can choose: those of the last step, from which the output is chosen.
  positions() {
    const last = this.steps.at(-1);
    return last.labels.token ?? last.labels.query ?? [];
  }

  turn(by) {
    this.stop();
    this.go(this.at + by);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "SELECT") return;
    const at = this.current.cells.findIndex(row => row.includes(event.target));
    const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (at >= 0 && by) {
      event.preventDefault();
      this.current.cells[at + by[0]]?.[this.current.cells[at].indexOf(event.target) + by[1]]?.focus();
    } else if (at >= 0 && event.key === " ") {
      event.preventDefault();
      this.run();
    } else if (event.key === "f" || event.key === "b") {
      this.turn(event.key === "f" ? 1 : -1);
      if (at >= 0) this.stopCell.focus();
    }
  }

  run() {
    if (this.timer) {
      this.stop();
      return this.draw();
    }
    this.timer = setInterval(() => {
      if (this.at === this.steps.length - 1 || !this.box.isConnected) this.stop();
      this.go(this.at + 1);
    }, STEP_TIME);
    return this.draw();
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
  }
}
