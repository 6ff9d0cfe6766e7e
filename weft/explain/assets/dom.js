"use strict";
// The theme, and elements. Texts are only ever set as text, never as HTML.

const root = document.documentElement, darkSystem = window.matchMedia("(prefers-color-scheme: dark)");

function showTheme() {
  const theme = root.dataset.theme ?? "system";
  root.classList.toggle("dark", theme === "system" ? darkSystem.matches : theme === "dark");
}

darkSystem.addEventListener("change", showTheme);
showTheme();

function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function find(id) {
  return document.getElementById(id);
}

/** Makes the items of a row one tab stop: arrow keys, Home and End move between them. */
function rove(row, items, start = 0) {
  items.forEach((item, place) => {
    item.tabIndex = place === start ? 0 : -1;
    item.addEventListener("focus", () => items.forEach(each => { each.tabIndex = each === item ? 0 : -1; }));
  });
  row.onkeydown = event => {
    const at = items.indexOf(document.activeElement), forward = getComputedStyle(row).direction === "rtl" ? -1 : 1;
    const next = { ArrowRight: at + forward, ArrowLeft: at - forward, Home: 0, End: items.length - 1 }[event.key];
    if (at < 0 || next === undefined) return;
    event.preventDefault();
    items[next]?.focus();
  };
}

/** Replaces the children of a node if what they show has changed: a selection, an open list or a click stays undisturbed. */
function renew(node, state, children) {
  const text = JSON.stringify(state);
  if (node.shownState === text) return;
  node.shownState = text;
  node.replaceChildren(...children());
}

/** Replaces the children of a box. The focus stays at its place. */
function refill(box, ...children) {
  const at = [...box.children].indexOf(document.activeElement);
  box.replaceChildren(...children);
  box.children[at]?.focus();
}
