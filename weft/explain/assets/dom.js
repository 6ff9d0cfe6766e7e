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
