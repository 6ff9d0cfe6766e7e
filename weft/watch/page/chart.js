"use strict";
// Curves of several runs over each other, as SVG.

const WIDTH = 480, HEIGHT = 240, LEFT = 60, RIGHT = 10, TOP = 10, BOTTOM = 26, NAME = 46;
const COLOURS = 6, DASHES = ["", "6 3", "2 3"];

/** A number for people, short. */
function short(value) {
  if (value === null || value === undefined) return "";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toPrecision(3)}M`;
  if (size >= 1e4) return `${Math.round(value / 1e3)}k`;
  if (size !== 0 && size < 1e-4) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

/** The look of the n-th run: a colour and, from the seventh on, a dash. */
function look(number) {
  return { stroke: `var(--c${number % COLOURS})`, "stroke-dasharray": DASHES[Math.floor(number / COLOURS) % DASHES.length] };
}

function swatch(number) {
  return svg("svg", { class: "swatch", viewBox: "0 0 26 12", "aria-hidden": "true" },
    svg("line", { x1: 0, x2: 26, y1: 6, y2: 6, "stroke-width": 3, ...look(number) }));
}

/** Round values between two bounds. */
function ticks(low, high, count) {
  const rough = (high - low) / count || 1, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map(each => each * power).find(each => each >= rough / 1.45);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(value);
  return found;
}

/** A chart. lines: {label, number, points: [[x, y], …], faint} each. */
function chart(title, lines, logarithmic = false) {
  const shown = lines.map(line => ({ ...line, points: line.points.filter(([, y]) => !logarithmic || y > 0) })).filter(line => line.points.length);
  const caption = element("figcaption", {}, title);
  if (!shown.length) return element("figure", {}, caption, element("p", { class: "hint" }, "Nothing yet."));
  const scale = y => logarithmic ? Math.log10(y) : y;
  const xs = shown.flatMap(line => line.points.map(([x]) => x)), ys = shown.flatMap(line => line.points.map(([, y]) => scale(y)));
  const [left, right] = [Math.min(0, ...xs), Math.max(1, ...xs)];
  let [low, high] = [ys.reduce((a, b) => Math.min(a, b)), ys.reduce((a, b) => Math.max(a, b))];
  if (low === high) [low, high] = [low - (Math.abs(low) * .1 || 1), high + (Math.abs(high) * .1 || 1)];
  const placeX = x => LEFT + (x - left) / (right - left) * (WIDTH - LEFT - RIGHT);
  const placeY = y => HEIGHT - BOTTOM - (scale(y) - low) / (high - low) * (HEIGHT - TOP - BOTTOM);
  const last = shown.map(line => `${line.label} ${short(line.points.at(-1)[1])}`).join(", ");
  const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title} by step; now ${last}` });
  for (const tick of ticks(low, high, 5)) {
    const y = logarithmic ? 10 ** tick : tick;
    drawing.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: placeY(y), y2: placeY(y) }),
      svg("text", { x: LEFT - 6, y: placeY(y) + 4, "text-anchor": "end" }, short(y)));
  }
  for (const tick of ticks(left, right, 5).filter(tick => placeX(tick) < WIDTH - RIGHT - NAME)) drawing.append(svg("text", { x: placeX(tick), y: HEIGHT - 8, "text-anchor": "middle" }, short(tick)));
  drawing.append(svg("text", { x: WIDTH - RIGHT, y: HEIGHT - 8, "text-anchor": "end" }, "step"));
  for (const line of shown) {
    const points = line.points.map(([x, y]) => `${placeX(x).toFixed(1)},${placeY(y).toFixed(1)}`).join(" ");
    const style = { ...look(line.number), ...(line.faint ? { opacity: .45 } : {}) };
    drawing.append(svg("polyline", { class: "curve", points, ...style }));
    if (line.points.length === 1) drawing.append(svg("circle", { cx: placeX(line.points[0][0]), cy: placeY(line.points[0][1]), r: 3, fill: style.stroke }));
  }
  const legend = shown.filter(line => !line.faint).map(line => element("li", {}, swatch(line.number), ` ${line.label} `, element("b", {}, short(line.points.at(-1)[1]))));
  return element("figure", {}, caption, drawing, element("ul", { class: "legend" }, ...legend));
}
