"use strict";
// Renders the server's OpenAPI schema as a readable reference.

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
    const cells = [[element("code", {}, name), schema.required?.includes(name) ? " (required)" : ""], [typeName(each, root)], [each.description ?? ""]];
    return element("tr", {}, ...cells.map((cell) => element("td", {}, ...cell)));
  });
  return element("table", {}, element("tbody", {}, ...rows));
}

function operation(method, path, details, root) {
  const heading = element("h3", {}, element("code", {}, `${method.toUpperCase()} ${path}`));
  const body = resolve(details.requestBody?.content?.["application/json"]?.schema, root);
  const fields = body ? [element("p", {}, body.description ?? ""), table(body, root)] : [];
  return element("section", { class: "pair" }, heading, element("p", {}, details.summary ?? ""), ...fields);
}

async function start() {
  const root = await (await fetch("openapi.json")).json();
  const cards = Object.entries(root.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, details]) => operation(method, path, details, root)));
  find("paths").replaceChildren(...cards);
}

start();
