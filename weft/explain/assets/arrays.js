// Decodes the weights stored in the page (deflated bytes, 255 · √w), and combines heads and words.

async function unpack(map) {
  if (map.weights) return map.weights;
  const encoded = atob(map.data), bytes = new Uint8Array(encoded.length);
  for (let i = 0; i < encoded.length; i++) bytes[i] = encoded.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const levels = new Uint8Array(await new Response(stream).arrayBuffer());
  map.weights = Float32Array.from(levels, level => (level / 255) ** 2);
  return map.weights;
}

// One head, or the mean or maximum of all heads, as {rows, columns, values}.
function oneHead(map, head) {
  const [heads, rows, columns] = map.shape, size = rows * columns;
  if (head !== "mean" && head !== "max") {
    return { rows, columns, values: map.weights.subarray(head * size, (head + 1) * size) };
  }
  const values = new Float32Array(size);
  for (let h = 0; h < heads; h++) {
    for (let i = 0; i < size; i++) {
      const weight = map.weights[h * size + i];
      values[i] = head === "mean" ? values[i] + weight / heads : Math.max(values[i], weight);
    }
  }
  return { rows, columns, values };
}

// Weights between words: the mean over a query word's tokens, the sum over a key word's tokens.
function joinWords(matrix, rowWords, columnWords) {
  const values = new Float32Array(rowWords.length * columnWords.length);
  rowWords.forEach(([top, bottom], r) => columnWords.forEach(([left, right], c) => {
    let sum = 0;
    for (let i = top; i < bottom; i++) {
      for (let j = left; j < right; j++) sum += matrix.values[i * matrix.columns + j];
    }
    values[r * columnWords.length + c] = sum / (bottom - top);
  }));
  return { rows: rowWords.length, columns: columnWords.length, values };
}

// The labels along an axis of a map, and whether they run from right to left.
function axisLabels(explanation, map, axis, words) {
  const side = explanation.sides[map[axis]];
  if (!side) return { names: Array.from({ length: map.shape[2] }, (_, i) => String(i + 1)), rtl: false };
  return { names: words ? side.names : side.tokens, rtl: side.rtl, words: side.words };
}

function matrixOf(explanation, map, head, words) {
  const matrix = oneHead(map, head);
  if (!words) return matrix;
  const single = Array.from({ length: matrix.columns }, (_, i) => [i, i + 1]);
  const columns = explanation.sides[map.columns];
  return joinWords(matrix, explanation.sides[map.rows].words, columns ? columns.words : single);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
