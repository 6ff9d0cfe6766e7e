"use strict";
// Lines with their translations: words that are linked by attention, alternatives, and explanations.

const SHARE = 0.1; // a link is named if it has this share of the attention

/** A line and its translation. `explain` is called to explain the line. */
function pair(line, { text, score, alignment, alternatives, unmet, confidence, words }, { source, target }, number, explain) {
  const button = element("button", { class: "explain", type: "button", onclick: explain }, "Explain");
  const sure = confidence === undefined ? `score ${score.toFixed(3)}` : `confidence ${percent(confidence)}`;
  const tools = element("p", { class: "tools" }, element("span", { class: "score" }, sure), button);
  const plain = () => [[line, source], [text, target]].map(([each, code]) => element("p", { class: "pieces", ...script(code) }, each));
  const rows = alignment ? linkedRows(alignment, source, target) : plain();
  const missing = unmet ? [element("p", { class: "hint" }, `The translation became too long before it contained: ${unmet.join(", ")}.`)] : [];
  return element("div", { class: "pair", role: "group", "aria-label": `Line ${number}` },
    tools, ...rows, ...(words ? [judgedWords(text, words, target)] : []), ...missing, ...alternativesList(alternatives ?? [], target));
}

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

/** The translation with the confidence in each word; those that are probably wrong are underlined. */
function judgedWords(text, words, code) {
  const characters = [...text]; // places count characters, not halves of surrogate pairs
  const parts = [];
  let at = 0;
  for (const { start, end, confidence, tag } of words) {
    const name = characters.slice(start, end).join("");
    const word = element("span", { class: tag === "BAD" ? "word doubtful" : "word", title: `${percent(confidence)} sure` }, name);
    word.style.setProperty("--doubt", 1 - confidence); // the policy of the page forbids attributes with styles
    parts.push(characters.slice(at, start).join(""), word);
    at = end;
  }
  return element("p", { class: "pieces judged", "aria-label": "Confidence in each word", ...script(code) }, ...parts, characters.slice(at).join(""));
}

/** Two rows of words, and a caption that names the links of the word that is pointed at or has the focus. */
function linkedRows({ source, target, weights }, sourceCode, targetCode) {
  const caption = element("p", { class: "links" });
  const across = source.map((_, from) => target.map((_, to) => weights[to][from]));
  const rows = [row("Text", sourceCode, source, target, across), row("Translation", targetCode, target, source, weights)];
  rows.forEach((each, side) => connect(each, rows[1 - side], caption));
  return [...rows.map(({ box }) => box), caption];
}

/** A row of pieces. links: for each piece its weights to all `others`. */
function row(name, code, pieces, others, links) {
  const items = pieces.map((piece, place) => element("span", {
    class: piece ? "piece" : "piece end", role: "option", "aria-selected": "false", "aria-label": spoken(shown(piece), others, links[place]),
  }, piece.trim() || piece || "end"));
  const spaced = items.flatMap((item, place) => [/^\s+\S|^$/.test(pieces[place]) ? " " : "", item]);
  const attributes = { class: "pieces", role: "listbox", "aria-orientation": "horizontal", "aria-label": name, ...script(code) };
  return { items, links, box: element("div", attributes, ...spaced) };
}

function shown(piece) {
  return piece.trim() || (piece ? "space" : "end");
}

/** A word with those it is linked to, the strongest first. */
function spoken(name, others, weights) {
  const strongest = weights.map((weight, place) => [weight, shown(others[place])]).sort(([one], [other]) => other - one);
  const named = strongest.filter(([weight]) => weight >= SHARE).slice(0, 4).map(([weight, other]) => `${other} ${Math.round(100 * weight)} %`);
  return `${name}: ${named.join(", ") || "no strong link"}`;
}

/** Highlights the links of each item in the other row, and makes the row one tab stop. */
function connect({ box, items, links }, other, caption) {
  items.forEach((item, from) => {
    const strongest = Math.max(1e-6, ...links[from]);
    const mark = (show) => () => {
      caption.textContent = show ? item.getAttribute("aria-label") : "";
      item.setAttribute("aria-selected", show);
      other.items.forEach((linked, to) => {
        const weight = show ? links[from][to] / strongest : 0;
        linked.style.setProperty("--weight", weight);
        linked.classList.toggle("linked", weight > 0.5);
      });
    };
    for (const event of ["pointerenter", "focus"]) item.addEventListener(event, mark(true));
    for (const event of ["pointerleave", "blur"]) item.addEventListener(event, mark(false));
    item.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowUp" && event.key !== "ArrowDown") return;
      event.preventDefault();
      other.items[links[from].indexOf(Math.max(...links[from]))]?.focus();
    });
  });
  rove(box, items);
}

function alternativesList(alternatives, code) {
  if (!alternatives.length) return [];
  const items = alternatives.map(({ text, score }) =>
    element("li", {}, element("span", script(code), text), " ", element("span", { class: "score" }, score.toFixed(3))));
  return [element("details", { class: "alternatives" }, element("summary", {}, `${alternatives.length} more`), element("ol", {}, ...items))];
}
