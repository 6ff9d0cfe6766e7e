// Weights as they come in the page: bytes 255 · √w, deflated; and what is made of them: heads joined, words joined.

async function unpack(look) {
  if (look.weights) return look.weights;
  const letters = atob(look.data), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const levels = new Uint8Array(await new Response(stream).arrayBuffer());
  look.weights = Float32Array.from(levels, level => (level / 255) ** 2);
  return look.weights;
}

// One head, or the mean or the greatest of all, as {rows, columns, values}.
function oneHead(look, head) {
  const [heads, rows, columns] = look.shape, size = rows * columns;
  if (head !== "mean" && head !== "max") {
    return { rows, columns, values: look.weights.subarray(head * size, (head + 1) * size) };
  }
  const values = new Float32Array(size);
  for (let h = 0; h < heads; h++) {
    for (let i = 0; i < size; i++) {
      const weight = look.weights[h * size + i];
      values[i] = head === "mean" ? values[i] + weight / heads : Math.max(values[i], weight);
    }
  }
  return { rows, columns, values };
}

// From words to words: the mean over the tokens that look, the sum over those looked at.
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

// What stands along a side of a look: its names, and whether it runs from the right.
function alongside(explanation, look, which, words) {
  const side = explanation.sides[look[which]];
  if (!side) return { names: Array.from({ length: look.shape[2] }, (_, i) => String(i + 1)), rtl: false };
  return { names: words ? side.names : side.tokens, rtl: side.rtl, words: side.words };
}

function matrixOf(explanation, look, head, words) {
  const matrix = oneHead(look, head);
  if (!words) return matrix;
  const each = Array.from({ length: matrix.columns }, (_, i) => [i, i + 1]);
  const columns = explanation.sides[look.columns];
  return joinWords(matrix, explanation.sides[look.rows].words, columns ? columns.words : each);
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
