"use strict";
// The server's own OpenAPI description, as a list that people can read.

function make(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

function resolved(schema, root) {
  return schema?.$ref ? root.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function kind(schema, root) {
  const found = resolved(schema, root) ?? {};
  const many = found.anyOf ?? found.oneOf;
  if (many) return many.map((each) => kind(each, root)).join(" or ");
  if (found.enum) return found.enum.join(" or ");
  if (found.type === "array") return `list of ${kind(found.items, root)}`;
  return found.title && found.type === "object" ? found.title : (found.type ?? "anything");
}

function table(schema, root) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, each]) => {
    const needed = schema.required?.includes(name) ? " (needed)" : "";
    return make("tr", make("td", make("code", name), needed), make("td", kind(each, root)), make("td", each.description ?? ""));
  });
  return make("table", make("tbody", ...rows));
}

function operation(method, path, about, root) {
  const card = make("section", make("h3", make("code", `${method.toUpperCase()} ${path}`)), make("p", about.summary ?? ""));
  card.className = "pair";
  const body = resolved(about.requestBody?.content?.["application/json"]?.schema, root);
  if (body) card.append(make("p", body.description ?? ""), table(body, root));
  return card;
}

async function start() {
  const root = await (await fetch("/openapi.json")).json();
  const cards = Object.entries(root.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => operation(method, path, about, root)));
  document.getElementById("paths").replaceChildren(...cards);
}

start();
