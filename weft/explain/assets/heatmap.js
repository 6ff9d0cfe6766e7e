// A heat map on one canvas, for any number of tokens: rows are queries, columns are keys.

const SCALE = 56;  // room for the colour scale beside a map, in pixels

function largestOf(values) {
  let largest = 1e-6;
  for (const value of values) largest = Math.max(largest, value);
  return largest;
}

// The text, without its middle if it is wider than `room`.
function elide(context, text, room) {
  const letters = [...text];
  while (letters.length > 2 && context.measureText(letters.join("") + "…").width > room) {
    letters.splice(letters.length >> 1, 1);
  }
  const kept = letters.length;
  return kept === [...text].length || context.measureText(text).width <= room
    ? text : `${letters.slice(0, (kept + 1) >> 1).join("")}…${letters.slice((kept + 1) >> 1).join("")}`;
}

function paint(matrix, mirrored) {
  const { rows, columns, values } = matrix;
  const canvas = element("canvas", { width: columns, height: rows });
  const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
  const [red, green, blue] = colour("heat").split(",").map(Number);
  const largest = largestOf(values);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const at = 4 * (r * columns + (mirrored ? columns - 1 - c : c));
      image.data.set([red, green, blue, 255 * Math.sqrt(values[r * columns + c] / largest)], at);
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

class HeatMap {
  constructor(tell) {
    this.tell = tell;
    this.canvas = element("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "heat map", class: "map",
      onmousemove: event => this.point(event), onkeydown: event => this.move(event),
    });
    this.at = null;
  }

  show(matrix, rows, columns, width) {
    Object.assign(this, { matrix, rows, columns, at: null });
    const context = this.canvas.getContext("2d");
    context.font = "13px system-ui, sans-serif";
    const widest = names => Math.min(130, Math.max(...names.map(name => context.measureText(name).width)) + 8);
    this.left = widest(rows.names);
    this.top = Math.max(22, widest(columns.names));
    this.cell = Math.max(4, Math.min(28, Math.floor((width - this.left - 8 - SCALE) / matrix.columns)));
    this.canvas.setAttribute("aria-label", `weights, ${matrix.rows} by ${matrix.columns}; move with the arrow keys`);
    this.image = paint(matrix, columns.rtl);
    this.draw();
  }

  draw() {
    const { matrix, cell, left, top } = this, scale = window.devicePixelRatio || 1;
    const width = left + matrix.columns * cell + SCALE, height = top + Math.max(matrix.rows * cell, 40) + 8;
    const context = resize(this.canvas, width, height, scale);
    context.imageSmoothingEnabled = false;
    context.drawImage(this.image, left, top, matrix.columns * cell, matrix.rows * cell);
    context.strokeStyle = colour("edge");
    context.strokeRect(left + 0.5, top + 0.5, matrix.columns * cell, matrix.rows * cell);
    this.drawLabels(context);
    this.drawScale(context);
    if (this.at) {
      context.strokeStyle = `rgb(${colour("mark")})`;
      context.lineWidth = 2;
      context.strokeRect(left + this.place(this.at[1]) * cell, top + this.at[0] * cell, cell, cell);
    }
  }

  drawLabels(context) {
    const { cell, left, top } = this, every = Math.ceil(11 / cell);
    context.fillStyle = colour("ink");
    context.font = `${Math.min(13, Math.max(9, cell))}px system-ui, sans-serif`;
    context.textBaseline = "middle";
    context.textAlign = "right";
    this.rows.names.forEach((name, r) => {
      if (r % every === 0) context.fillText(elide(context, name, left - 6), left - 5, top + (r + 0.5) * cell);
    });
    this.columns.names.forEach((name, c) => {
      if (c % every !== 0) return;
      context.save();
      context.translate(left + (this.place(c) + 0.5) * cell, top - 5);
      const upright = context.measureText(name).width <= cell * every;
      if (!upright) context.rotate(-Math.PI / 2);
      context.textAlign = upright ? "center" : "left";
      context.fillText(elide(context, name, upright ? cell * every : top - 6), 0, upright ? -6 : 0);
      context.restore();
    });
  }

  // The weights that the colours stand for. Colours follow the square root, so half the scale is a quarter of the weight.
  drawScale(context) {
    const { matrix, cell, left, top } = this, x = left + matrix.columns * cell + 10;
    const height = Math.min(120, Math.max(matrix.rows * cell, 40)), largest = largestOf(matrix.values), heat = colour("heat");
    const fill = context.createLinearGradient(0, top + height, 0, top);
    fill.addColorStop(0, `rgba(${heat},0)`);
    fill.addColorStop(1, `rgba(${heat},1)`);
    context.fillStyle = fill;
    context.fillRect(x, top, 9, height);
    context.strokeStyle = colour("edge");
    context.strokeRect(x + 0.5, top + 0.5, 9, height);
    context.fillStyle = colour("ink");
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "left";
    for (const share of [0, 0.5, 1]) {
      const value = share * share * largest;
      context.fillText(value === 0 ? "0" : value.toFixed(2), x + 13, top + (1 - share) * height);
    }
  }

  place(column) {
    return this.columns.rtl ? this.matrix.columns - 1 - column : column;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const across = Math.floor((event.clientX - box.left - this.left) / this.cell);
    this.choose(Math.floor((event.clientY - box.top - this.top) / this.cell), this.place(across));
  }

  move(event) {
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }, by = steps[event.key];
    if (!by) return;
    event.preventDefault();
    const [row, column] = this.at || [0, 0];
    this.choose(row + by[0], column + (this.columns.rtl ? -by[1] : by[1]));
  }

  choose(row, column) {
    const { matrix } = this;
    if (row < 0 || column < 0 || row >= matrix.rows || column >= matrix.columns) return;
    this.at = [row, column];
    this.draw();
    this.tell(`${this.rows.names[row]} → ${this.columns.names[column]}: ${matrix.values[row * matrix.columns + column].toFixed(3)}`);
  }
}
