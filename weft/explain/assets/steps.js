// The attention step by step: the weights of each target token.

class Steps {
  constructor(tell) {
    this.tell = tell;
    this.at = 0;
    this.timer = null;
    const button = (text, action) => element("button", { type: "button", onclick: action }, text);
    this.play = button("play", () => this.run());
    this.keys = element("div");
    this.queries = element("div");
    this.box = element("div", { class: "steps", tabindex: 0, role: "group", "aria-label": "step by step; move with the arrow keys", onkeydown: event => this.key(event) },
      element("p", { class: "controls" }, button("← back", () => this.go(-1)), button("next →", () => this.go(1)), this.play),
      this.keys, this.queries);
  }

  show(matrix, rows, columns) {
    Object.assign(this, { matrix, rows, columns, at: Math.min(this.at, matrix.rows - 1) });
    fillRow(this.keys, columns, () => ({}));
    fillRow(this.queries, rows, place => ({ onclick: () => this.go(place - this.at) }));
    this.draw();
  }

  draw() {
    const { matrix, at } = this, heat = colour("heat");
    [...this.keys.children].forEach((span, c) => {
      const weight = matrix.values[at * matrix.columns + c];
      span.style.background = `rgba(${heat}, ${Math.min(1, Math.sqrt(weight)) * 0.5})`;
      span.title = weight.toFixed(3);
    });
    [...this.queries.children].forEach((span, r) => {
      span.classList.toggle("on", r === at);
      span.classList.toggle("later", r > at);
    });
    const weights = matrix.values.subarray(at * matrix.columns, (at + 1) * matrix.columns);
    this.tell(`step ${at + 1} of ${matrix.rows}: ${this.rows.names[at]} ← ${strongest(this.columns.names, weights)}`);
  }

  go(by) {
    this.at = Math.max(0, Math.min(this.matrix.rows - 1, this.at + by));
    this.draw();
  }

  key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    this.go(by);
  }

  run() {
    if (this.timer) return this.stop();
    if (this.at === this.matrix.rows - 1) this.go(-this.matrix.rows);
    this.play.textContent = "stop";
    this.timer = setInterval(() => {
      if (this.at === this.matrix.rows - 1) this.stop();
      else this.go(1);
    }, 700);
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    this.play.textContent = "play";
  }
}
