// Alignment lines: keys above, queries below, and a line for every weight above a threshold.

const SMALLEST_WEIGHT = 0.04;
const LINES_HEIGHT = 150;

class Lines {
  constructor(tell) {
    this.tell = tell;
    this.above = element("div", { class: "row" });
    this.below = element("div", { class: "row" });
    this.canvas = element("canvas");
    this.box = element("div", { class: "lines" }, this.above, this.canvas, this.below);
  }

  show(matrix, rows, columns) {
    Object.assign(this, { matrix, rows, columns, only: null });
    for (const [row, side, which] of [[this.above, columns, "column"], [this.below, rows, "row"]]) {
      const pick = place => () => this.pick(which, place);
      fillRow(row, side, place => ({ tabindex: 0, onmouseenter: pick(place), onfocus: pick(place), onmouseleave: pick(null), onblur: pick(null) }));
    }
    this.draw();
  }

  pick(which, place) {
    this.only = place === null ? null : { which, place };
    for (const [row, name] of [[this.above, "column"], [this.below, "row"]]) {
      [...row.children].forEach((span, i) => span.classList.toggle("on", which === name && place === i));
    }
    this.draw();
    if (place !== null) this.tell(this.strongest(which, place));
  }

  strongest(which, place) {
    const { matrix } = this, count = which === "row" ? matrix.columns : matrix.rows;
    const weight = i => which === "row" ? matrix.values[place * matrix.columns + i] : matrix.values[i * matrix.columns + place];
    const [own, other] = which === "row" ? [this.rows, this.columns] : [this.columns, this.rows];
    const best = Array.from({ length: count }, (_, i) => i).sort((a, b) => weight(b) - weight(a)).slice(0, 4);
    return `${own.names[place]}: ${best.map(i => `${other.names[i]} ${weight(i).toFixed(2)}`).join(" · ")}`;
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
