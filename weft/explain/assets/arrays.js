// Decodes the weights stored in the page (deflated bytes, 255 · √w), and combines heads and words.

async function unpack(map) {
  if (map.weights) return map.weights;
  const bytes = Uint8Array.from(atob(map.data), character => character.charCodeAt(0));
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

// The strongest of some weights, with their names.
function strongest(names, weights) {
  const order = Array.from(weights, (_, place) => place).sort((a, b) => weights[b] - weights[a]);
  return order.slice(0, 4).map(place => `${names[place]} ${weights[place].toFixed(2)}`).join(" · ");
}

// Writes the labels of an axis into a row, each with the attributes that `attributes` returns for its number.
function fillRow(row, { names, rtl }, attributes) {
  row.dir = rtl ? "rtl" : "ltr";
  row.replaceChildren(...names.map((name, place) => element("span", attributes(place), element("bdi", {}, name))));
}

// Sets the size of a canvas in CSS pixels and returns its context.
function resize(canvas, width, height, scale) {
  Object.assign(canvas, { width: width * scale, height: height * scale });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  return context;
}

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}
