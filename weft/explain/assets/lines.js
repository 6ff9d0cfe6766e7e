// Alignment lines: keys above, queries below, and a line for every weight above a threshold.

const SMALLEST_WEIGHT = 0.04;
const LINES_HEIGHT = 150;

class Lines {
  constructor(tell) {
    this.tell = tell;
    [this.above, this.below] = ["attended to", "attending"].map(name => element("div", {
      class: "row", role: "listbox", "aria-orientation": "horizontal", "aria-label": `${name}; move with the arrow keys`,
    }));
    this.canvas = element("canvas", { "aria-hidden": "true" });
    this.box = element("div", { class: "lines" }, this.above, this.canvas, this.below);
  }

  show(matrix, rows, columns) {
    Object.assign(this, { matrix, rows, columns, only: null });
    for (const [row, side, which] of [[this.above, columns, "column"], [this.below, rows, "row"]]) {
      const pick = place => () => this.pick(which, place);
      fillRow(row, side, place => ({
        role: "option", "aria-selected": "false", "aria-label": this.describe(which, place),
        onmouseenter: pick(place), onfocus: pick(place), onmouseleave: pick(null), onblur: pick(null),
      }));
      rove(row, [...row.children]);
    }
    this.draw();
  }

  pick(which, place) {
    this.only = place === null ? null : { which, place };
    for (const [row, name] of [[this.above, "column"], [this.below, "row"]]) {
      [...row.children].forEach((span, i) => span.setAttribute("aria-selected", which === name && place === i));
    }
    this.draw();
    if (place !== null) this.tell(this.describe(which, place));
  }

  describe(which, place) {
    const { rows, columns, values } = this.matrix, [own, other] = which === "row" ? [this.rows, this.columns] : [this.columns, this.rows];
    const weights = which === "row" ? values.subarray(place * columns, (place + 1) * columns) : Array.from({ length: rows }, (_, r) => values[r * columns + place]);
    return `${own.names[place]}: ${strongest(other.names, weights)}`;
  }

  draw() {
    const width = Math.max(this.above.scrollWidth, this.below.scrollWidth, 1);
    const scale = Math.min(window.devicePixelRatio || 1, 16000 / width);
    const context = resize(this.canvas, width, LINES_HEIGHT, scale), { matrix, only } = this, heat = colour("heat");
    const middles = row => [...row.children].map(span => span.offsetLeft - row.offsetLeft + span.offsetWidth / 2);
    const tops = middles(this.above), bottoms = middles(this.below);
    for (let r = 0; r < matrix.rows; r++) {
      for (let c = 0; c < matrix.columns; c++) {
        const weight = matrix.values[r * matrix.columns + c];
        if (weight < SMALLEST_WEIGHT || (only && (only.which === "row" ? r : c) !== only.place)) continue;
        context.strokeStyle = `rgba(${heat}, ${Math.min(1, weight + 0.05)})`;
        context.lineWidth = 0.5 + 3 * weight;
        context.beginPath();
        context.moveTo(tops[c], 0);
        context.bezierCurveTo(tops[c], LINES_HEIGHT / 2, bottoms[r], LINES_HEIGHT / 2, bottoms[r], LINES_HEIGHT);
        context.stroke();
      }
    }
  }
}
