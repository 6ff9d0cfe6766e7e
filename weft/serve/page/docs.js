"use strict";
// Renders the server's OpenAPI schema as a readable reference.

function make(name, ...children) {
  const element = document.createElement(name);
  element.append(...children);
  return element;
}

function resolve(schema, root) {
  return schema?.$ref ? root.components.schemas[schema.$ref.split("/").pop()] : schema;
}

function typeName(schema, root) {
  const type = resolve(schema, root) ?? {};
  const variants = type.anyOf ?? type.oneOf;
  if (variants) return variants.map((each) => typeName(each, root)).join(" or ");
  if (type.enum) return type.enum.join(" or ");
  if (type.type === "array") return `list of ${typeName(type.items, root)}`;
  return type.title && type.type === "object" ? type.title : (type.type ?? "any");
}

function table(schema, root) {
  const rows = Object.entries(schema.properties ?? {}).map(([name, each]) => {
    const required = schema.required?.includes(name) ? " (required)" : "";
    return make("tr", make("td", make("code", name), required), make("td", typeName(each, root)), make("td", each.description ?? ""));
  });
  return make("table", make("tbody", ...rows));
}

function operation(method, path, details, root) {
  const card = make("section", make("h3", make("code", `${method.toUpperCase()} ${path}`)), make("p", details.summary ?? ""));
  card.className = "pair";
  const body = resolve(details.requestBody?.content?.["application/json"]?.schema, root);
  if (body) card.append(make("p", body.description ?? ""), table(body, root));
  return card;
}

async function start() {
  const root = await (await fetch("/openapi.json")).json();
  const cards = Object.entries(root.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, details]) => operation(method, path, details, root)));
  document.getElementById("paths").replaceChildren(...cards);
}

start();
