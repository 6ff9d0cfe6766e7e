// The beam tree: one column per step, the best hypothesis on top. Dropped ones are dashed; hovering shows the reason.

const COLUMN_WIDTH = 92, LINE_HEIGHT = 34, BOX_WIDTH = 66;

function beamTree(explanation, tell) {
  const places = [], heights = [];
  for (const { step } of explanation.tree) {
    heights[step] = (heights[step] ?? 0) + 1;
    places.push([20 + step * COLUMN_WIDTH, 6 + (heights[step] - 1) * LINE_HEIGHT]);
  }
  const nodes = explanation.tree.map((node, i) => treeNode(node, places, i, tell));
  const width = 40 + heights.length * COLUMN_WIDTH, height = 12 + Math.max(...heights) * LINE_HEIGHT;
  return element("div", { class: "stage" }, svg("svg", {
    class: "tree", width, height, role: "tree", "aria-label": "beam tree; move with the arrow keys",
    onkeydown: event => walk(event, explanation.tree, nodes),
  }, ...nodes));
}

function treeNode({ token, step, parent, score, fate, why, final, best }, places, i, tell) {
  const [x, y] = places[i];
  const from = parent < 0 ? [x - 20, y + 12] : [places[parent][0] + BOX_WIDTH, places[parent][1] + 12], bend = (from[0] + x) / 2;
  const name = token.length > 9 ? `${token.slice(0, 8)}…` : token;
  const label = svg("text", { x: x + BOX_WIDTH / 2, y: y + 12, "text-anchor": "middle", direction: "ltr", "unicode-bidi": "plaintext" }, name);
  const below = svg("text", { class: "score", x: x + BOX_WIDTH / 2, y: y + 22, "text-anchor": "middle" }, (final ?? score).toFixed(2));
  const description = `${token}: log-probability ${score.toFixed(3)}${final === null ? "" : `, final score ${final.toFixed(3)}`}${why ? ` — ${why}` : ""}`;
  const show = () => tell(description);
  return svg("g", { class: best ? `${fate} best` : fate, tabindex: i ? -1 : 0, role: "treeitem", "aria-level": step + 1, "aria-selected": best, onmouseenter: show, onfocus: show },
    svg("path", { d: `M${from} C${bend},${from[1]} ${bend},${y + 12} ${x},${y + 12}` }),
    svg("rect", { x, y, width: BOX_WIDTH, height: 25 }), label, below, svg("title", {}, description));
}

function walk(event, tree, nodes) {
  const at = nodes.indexOf(document.activeElement);
  if (at < 0) return;
  const sibling = place => tree[place]?.step === tree[at].step ? place : -1;
  const next = {
    ArrowLeft: () => tree[at].parent,
    ArrowRight: () => tree.findIndex(node => node.parent === at),
    ArrowUp: () => sibling(at - 1),
    ArrowDown: () => sibling(at + 1),
  }[event.key];
  if (!next) return;
  event.preventDefault();
  const chosen = nodes[next()];
  if (!chosen) return;
  nodes[at].setAttribute("tabindex", -1);
  chosen.setAttribute("tabindex", 0);
  chosen.focus();
}
