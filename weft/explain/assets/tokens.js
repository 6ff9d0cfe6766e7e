// The target token by token with probabilities, the n best translations, and where the model would have differed.

function describe(step) {
  const chosen = `${step.token}: ${percent(Math.exp(step.logp))}`;
  const rank = step.better ? `, ${step.better} more likely` : "";
  const copied = step.copied === null ? "" : `, ${percent(step.copied)} by copying`;
  const others = step.options.map(({ token, logp }) => `${token} ${percent(Math.exp(logp))}`).join(" · ");
  return `${chosen}${rank}${copied} — most likely: ${others}`;
}

function tokenRow(explanation, tell) {
  const buttons = explanation.steps.map(step => {
    const probability = Math.exp(step.logp), show = () => tell(describe(step));
    const button = element("button", {
      type: "button", class: step.better ? "token other" : "token", "aria-label": describe(step), onmouseenter: show, onfocus: show, onclick: show,
    }, element("bdi", {}, step.token));
    button.style.background = probability >= 0.5 ? `rgba(var(--good), ${(probability - 0.5) * 0.7})` : `rgba(var(--bad), ${(0.5 - probability) * 0.7})`;
    return button;
  });
  const row = element("div", {
    class: "tokens", role: "toolbar", "aria-label": "the translation token by token; move with the arrow keys", dir: explanation.sides.target.rtl ? "rtl" : "ltr",
  }, ...buttons);
  rove(row, buttons);
  return row;
}

function tableOf(headings, rows) {
  const cell = value => typeof value === "number"
    ? element("td", { class: "number" }, value.toFixed(3))
    : element("td", {}, element("bdi", {}, String(value)));
  const head = element("tr", {}, ...headings.map(text => element("th", { scope: "col" }, text)));
  return element("div", { class: "scroll" }, element("table", {},
    element("thead", {}, head), element("tbody", {}, ...rows.map(row => element("tr", {}, ...row.map(cell))))));
}

function continuations(explanation) {
  const rows = explanation.steps.filter(step => step.better > 0).map(step => [
    step.token, percent(Math.exp(step.logp)), step.options[0].token, percent(Math.exp(step.options[0].logp)), step.instead ?? "…",
  ]);
  if (!rows.length) return element("p", { class: "note" }, "Nowhere: every token is the model's most likely one.");
  return tableOf(["given", "probability", "most likely", "probability", "the model would have written"], rows);
}

// A row per pass of a decoder that writes all tokens at once. Tokens that it kept are faint; "·" is a blank.
function writingPasses(passes) {
  return passes.map(({ tokens, written }, i) => element("div", { class: "tokens", role: "group", "aria-label": `pass ${i + 1}` },
    element("span", { class: "note" }, `${i + 1}`),
    ...tokens.map((token, place) => element("bdi", { class: written[place] ? "token" : "token kept" }, token))));
}
