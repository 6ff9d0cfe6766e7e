"use strict";
// Renders the server's OpenAPI schema, examples and limits as a readable reference.

const TITLES = { weft: "JSON API", LibreTranslate: "LibreTranslate API" };
const BOUNDS = {
  minimum: "at least", exclusiveMinimum: "more than", maximum: "at most", exclusiveMaximum: "less than", maxProperties: "at most", maxItems: "at most",
};

function resolve(schema, root) {
  return schema?.$ref ? root.components.schemas[schema.$ref.split("/").pop()] : (schema ?? {});
}

function variants(schema) {
  return (schema.anyOf ?? schema.oneOf ?? [schema]).filter(({ type }) => type !== "null");
}

function typeName(schema, root) {
  return variants(schema).map((each) => {
    const type = resolve(each, root), { items, additionalProperties: values } = type;
    if (type.enum) return type.enum.join(" or ");
    if (type.type === "array") return `list of ${typeName(items, root)}`;
    if (type.type === "object" && typeof values === "object") return `object of ${typeName(values, root)}`;
    return (type.type === "object" && type.title) || type.type || "any";
  }).join(" or ");
}

function bounds(schema) {
  const found = variants(schema).flatMap((each) => Object.entries(BOUNDS)
    .filter(([name]) => Math.abs(each[name]) < 1e9).map(([name, words]) => `${words} ${each[name].toLocaleString("en")}`));
  const usual = schema.default && typeof schema.default !== "object" ? [`default ${schema.default}`] : [];
  return [...found, ...usual];
}

/** Names with their meanings; on a narrow screen the meaning is below the name. */
function list(rows) {
  return element("dl", { class: "fields-list" }, ...rows.flatMap(([name, about, ...text]) => [
    element("dt", {}, element("code", {}, name), about ? element("span", { class: "about" }, about) : ""), element("dd", {}, ...text)]));
}

function fields(schema, root) {
  return list(Object.entries(schema.properties ?? {}).map(([name, each]) => {
    const about = [typeName(each, root), ...bounds(each), ...(schema.required?.includes(name) ? ["required"] : [])];
    return [name, about.join(", "), each.description ?? ""];
  }));
}

/** The objects in a schema and in those that it refers to, each once. */
function objects(schema, root, found = new Set()) {
  for (const each of variants(schema)) {
    const type = resolve(each, root);
    if (type.items) objects(type.items, root, found);
    if (!type.properties || found.has(type)) continue;
    found.add(type);
    Object.values(type.properties).forEach((property) => objects(property, root, found));
  }
  return found;
}

function curl(method, path, body, key) {
  const parts = [`curl ${new URL(path.slice(1), document.baseURI)}`];
  if (key) parts.push("-H 'Authorization: Bearer KEY'");
  if (method === "POST") parts.push("-H 'Content-Type: application/json'", `-d '${JSON.stringify(body)}'`);
  return parts.join(" \\\n  ");
}

/** JSON with short values on one line. */
function layout(value, indent = "") {
  const flat = JSON.stringify(value, null, 1).replace(/\s*\n\s*/g, " ");
  if (flat.length < 72 || typeof value !== "object") return flat;
  const [open, close] = Array.isArray(value) ? "[]" : "{}", deeper = `${indent}  `;
  const rows = Object.entries(value).map(([name, each]) => `${deeper}${Array.isArray(value) ? "" : `"${name}": `}${layout(each, deeper)}`);
  return `${open}\n${rows.join(",\n")}\n${indent}${close}`;
}

function operation(method, path, details, root, [request, response] = [], key = false) {
  const parts = [], add = (title, ...nodes) => parts.push(element("h4", {}, title), ...nodes);
  const body = resolve(Object.values(details.requestBody?.content ?? {})[0]?.schema, root);
  const answers = [...objects(details.responses["200"]?.content?.["application/json"]?.schema ?? {}, root)];
  if (request !== undefined) add("Example", element("pre", {}, curl(method, path, request, key)));
  if (response) add("Response", element("pre", {}, typeof response === "string" ? response : layout(response)));
  if (body.properties) add("Fields of the request", element("p", {}, body.description ?? ""), fields(body, root));
  const about = (type) => element("p", {}, element("strong", {}, type.title), `: ${type.description}`);
  if (answers.length) add("Fields of the response", ...answers.flatMap((type) => [about(type), fields(type, root)]));
  const heading = element("h3", {}, element("code", {}, `${method} ${path}`));
  return element("section", { class: "operation", id: anchor(method, path) }, heading, element("p", {}, sentence(details.summary)), ...parts);
}

function anchor(method, path) {
  return `${method} ${path}`.toLowerCase().replace(/[^a-z0-9]+/g, "-");
}

function group(tag, operations, context) {
  return element("section", { id: anchor("api", tag) }, element("h2", {}, TITLES[tag] ?? tag), ...operations.map(([method, path, details]) =>
    operation(method, path, details, context.root, context.examples[`${method} ${path}`], context.key)));
}

function errors(operations) {
  const found = Object.assign({}, ...operations.map(([, , { responses }]) => responses));
  const rows = Object.entries(found).filter(([status]) => status >= "400").map(([status, { description }]) => [status, "", description]);
  return element("section", { id: "errors" }, element("h2", {}, "Errors"), element("p", {}, "Every error is an object with a message:"),
    element("pre", {}, layout({ error: "Invalid request: missing q parameter" })), list(rows));
}

function limits(values) {
  const rows = Object.entries(LIMITS).filter(([name]) => name in values)
    .map(([name, meaning]) => [values[name] ? values[name].toLocaleString("en") : "unlimited", "", meaning]);
  const about = element("p", {}, "The limits of this server, and the status beyond them:");
  return element("section", { id: "limits" }, element("h2", {}, "Limits"), about, list(rows));
}

function contents(tags, byTag) {
  const link = (id, text) => element("a", { href: `#${id}` }, text);
  const routes = (tag) => element("ul", {}, ...byTag[tag].map(([method, path]) =>
    element("li", {}, link(anchor(method, path), element("code", {}, `${method} ${path}`)))));
  const items = tags.map((tag) => element("li", {}, link(anchor("api", tag), TITLES[tag] ?? tag), routes(tag)));
  return [...items, element("li", {}, link("errors", "Errors")), element("li", {}, link("limits", "Limits"))];
}

async function start() {
  const [root, settings, [model]] = await Promise.all(["openapi.json", "frontend/settings", "v1/models"].map((path) => ask(path)));
  const operations = Object.entries(root.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, details]) => [method.toUpperCase(), path, details]));
  const tags = [...new Set(operations.map(([, , details]) => details.tags[0]))];
  const byTag = Object.fromEntries(tags.map((tag) => [tag, operations.filter(([, , details]) => details.tags[0] === tag)]));
  const context = { root, key: settings.keyRequired, examples: examples(model.source, model.target, model.name) };
  find("key").hidden = !settings.keyRequired;
  find("contents").querySelector("ul").append(...contents(tags, byTag));
  find("paths").replaceChildren(...tags.map((tag) => group(tag, byTag[tag], context)), errors(operations), limits(settings.limits));
  document.getElementById(location.hash.slice(1))?.scrollIntoView();
}

start().catch((error) => {
  find("status").textContent = `${sentence(error.message)} Reload the page to try again.`;
  find("status").classList.add("problem");
});
