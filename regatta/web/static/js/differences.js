// The page of `diff`.

const data = JSON.parse($("data").textContent);
const labels = data.versions.map((version) => version.label);
const pictures = [];
const SIGNS = { added: "+", removed: "−", changed: "~", reshaped: "~", rewired: "~" };

function said(value) {
  return value === null ? "None" : typeof value === "number" ? word(value) : spelled(value);
}

function section(title, note, ...parts) {
  return make("section", {}, make("div", { className: "bar" }, make("h2", { textContent: title }), make("span", { className: "help", textContent: note })), ...parts);
}

function rows(columns, lines) {
  const line = (kind, cells) => make("tr", {}, ...cells.map((cell, n) => make(kind, { textContent: cell, className: n ? "path" : "sign" })));
  const table = make("table", {}, make("thead", {}, line("th", columns)), make("tbody", {}, ...lines.map((cells) => line("td", cells))));
  return make("div", { className: "scroll", tabIndex: 0 }, table);
}

function number(name, value) {
  return name === "files" && typeof value === "string" ? value.slice(0, 10) : said(value);
}

function fields() {
  for (const [name, { rows: found, same }] of Object.entries(data.fields)) {
    if (!found.length) continue;
    const note = same ? `${same} the same` : "";
    const lines = found.map(([key, values]) => [key, ...values.map((value) => number(name, value))]);
    $("fields").append(section(name[0].toUpperCase() + name.slice(1), note, rows(["", ...labels], lines)));
  }
}

function renamed(left, right) {
  return left && right && left !== right ? `${left} → ${right}` : left ?? right;
}

// The other network with its changes framed; details of the chosen box are beside it.
function drawn(each, label) {
  const place = make("div", { className: "plot canvas" }), detail = make("aside", {});
  const happened = new Map(each.layers.filter((layer) => layer.right).map((layer) => [layer.right, layer]));
  const tell = (box) => detail.replaceChildren(...box.members.flatMap((id) => {
    const { kind, name } = each.drawn.nodes[id], layer = happened.get(id);
    return [make("h3", { textContent: `${kind} ${name || id}` }), make("p", { className: "help", textContent: layer ? words(layer) : "the same" })];
  }));
  const part = make("div", { className: "beside" }, place, detail);
  place.setAttribute("role", "region");
  place.setAttribute("aria-label", `network of ${label}`);
  return [part, () => {
    const graph = new Graph(place, each.drawn, tell);
    const first = each.drawn.boxes.findIndex((box) => box.what !== "same");
    graph.light(Math.max(0, first));
    place.scrollTop = Math.max(0, each.drawn.boxes[Math.max(0, first)].y * graph.scale - 160);
  }];
}

function words(layer) {
  if (layer.what === "rewired") return "other operands";
  return layer.changes.map(([name, a, b]) => `${name} ${said(a)} → ${said(b)}`).join(", ") || layer.what;
}

function layers(each, of, label) {
  if (!each.layers.length) return [];
  const lines = each.layers.map((layer) => [SIGNS[layer.what], renamed(layer.left, layer.right), layer.kind, words(layer)]);
  const [before, after] = each.expressions;
  const expressions = before !== null && before !== after ? [make("p", { className: "help", textContent: `− ${before}` }), make("p", { className: "help", textContent: `+ ${after}` })] : [];
  const [picture, begin] = each.drawn ? drawn(each, label) : [null, () => {}];
  const note = `${each.same_layers} ${each.same_layers === 1 ? "layer is" : "layers are"} the same`;
  pictures.push(begin); // drawn once its element is in the page and has a width
  return [section(`Network${of}`, note, ...expressions, rows(["", "layer", "kind", ""], lines), ...(picture ? [picture] : []))];
}

function tensorPair(tensor) {
  const shapes = tensor.shapes.filter(Boolean).map(sized);
  const facts = [[...new Set(shapes)].join(" → ")];
  if (tensor.distance) facts.push(`distance ${between(tensor.distance)}${tensor.relative ? `, ${between(tensor.relative)} of its norm` : ""}`);
  if (tensor.moved !== null) facts.push(`${(tensor.moved * 100).toFixed(1)}% in another bin`);
  if (["added", "removed"].includes(tensor.what)) facts.push(tensor.what);
  const name = renamed(tensor.left, tensor.right);
  const picture = tensor.histograms.some(Boolean) ? [drawHistogram(tensor.histograms, false, `Histograms of ${name}`)] : [];
  return make("figure", { className: "card" }, make("h3", { textContent: name }), ...facts.map((text) => make("p", { textContent: text })), ...picture);
}

function weights(each, of, label) {
  if (!each.tensors.length) return [];
  const partly = each.tensors.find((tensor) => tensor.distance && tensor.distance[0] !== tensor.distance[1]);
  const note = `${each.same_tensors} ${each.same_tensors === 1 ? "tensor is" : "tensors are"} the same, bit for bit. Bars: ${labels[0]}; line: ${label}.${partly ? ` From ${partly.planes} bytes of each weight: ± is how far a figure can be off.` : ""}`;
  const far = (tensor) => tensor.relative?.[1] ?? (tensor.what === "changed" ? 0 : Infinity);
  const sorted = [...each.tensors].sort((a, b) => far(b) - far(a));
  return [section(`Weights${of}`, note, make("div", { className: "grid" }, ...sorted.map(tensorPair)))];
}

for (const version of data.versions) {
  const created = new Date(version.created * 1000).toISOString().slice(0, 16).replace("T", " ");
  $("versions").append(make("div", {}, make("b", { textContent: version.label }), make("span", { className: "status", textContent: `${version.id.slice(0, 10)}  ${created}` }), make("p", { className: "help", textContent: version.message })));
}
$("verdict").textContent = data.same ? "They do not differ." : "";
fields();
data.comparisons.forEach((each, n) => {
  const of = data.versions.length > 2 ? ` of ${labels[0]} and ${labels[n + 1]}` : "";
  $("comparisons").append(...layers(each, of, labels[n + 1]), ...weights(each, of, labels[n + 1]));
});
pictures.forEach((begin) => begin());
