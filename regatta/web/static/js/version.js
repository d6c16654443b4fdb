// The page of a version: its metadata, then charts of its network, weights and metrics.

const data = JSON.parse($("data").textContent);
const tensors = new Map(data.tensors.map((tensor) => [tensor.name, tensor]));

function head() {
  $("name").textContent = data.name;
  $("id").textContent = data.id.slice(0, 10);
  $("created").textContent = new Date(data.created * 1000).toISOString().slice(0, 16).replace("T", " ");
  $("tags").append(...data.tags.map((tag) => make("span", { className: "tag", textContent: tag })));
  $("message").textContent = data.message;
  const said = { parameters: (n) => n.toLocaleString("en"), bytes, stored: bytes };
  for (const [name, value] of Object.entries(data.facts)) {
    $("figures").append(make("div", {}, make("dt", { textContent: name === "bytes" ? "size" : name }), make("dd", { textContent: (said[name] ?? String)(value) })));
  }
  $("hyperparameters").append(...Object.entries(data.hyperparameters).map(([name, value]) => make("li", {}, make("span", { textContent: `${name} ` }), spoken(value))));
}

function spoken(value) {
  return typeof value === "object" && value !== null ? JSON.stringify(value) : typeof value === "number" ? word(value) : spelled(value);
}

function pairs(entries) {
  return make("dl", {}, ...entries.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
}

function detail(box) {
  const parts = [];
  for (const id of box.members) {
    const node = data.network.nodes[id];
    const entries = Object.entries(node.attributes).map(([name, value]) => [name, Array.isArray(value) ? value.join(" × ") : spoken(value)]);
    if (node.shape) entries.push(["gives", sized(node.shape)]);
    parts.push(make("h3", { textContent: `${node.kind} ${node.name || node.id}` }), pairs(entries));
    const seen = data.activations[id];
    if (seen) parts.push(activationCard(seen, "for the given input"));
    const known = node.parameters.filter(([, name]) => tensors.has(name));
    parts.push(...known.map(([, name]) => tensorCard(tensors.get(name), $("counts-log").checked)));
    const others = node.parameters.filter(([, name]) => !tensors.has(name));
    if (others.length) parts.push(pairs(others.map(([role, name, size]) => [role, `${name} ${sized(size)}`])));
  }
  $("detail").replaceChildren(...parts);
}

function activationCard(seen, name) {
  const card = tensorCard({ ...seen, stored: null }, $("counts-log").checked, name);
  if (seen.zeros) card.querySelector("p:last-of-type").after(make("p", { textContent: `${Math.round(seen.zeros * 100)}% are zero` }));
  if (seen.maps.length) card.append(drawMaps(seen.maps));
  return card;
}

function network() {
  if (data.network === null) { $("network-section").hidden = true; return; }
  const count = Object.keys(data.network.nodes).length;
  $("network-count").textContent = `${count} layers`;
  if (!data.network.boxes.length) { $("network").textContent = "The network is too large to be drawn."; return; }
  const graph = new Graph($("network"), data.network, detail);
  $("smaller").addEventListener("click", () => graph.zoom(graph.scale / 1.25));
  $("larger").addEventListener("click", () => graph.zoom(graph.scale * 1.25));
  $("fit").addEventListener("click", () => graph.fit());
  const weighty = data.network.boxes.findIndex((box) => box.members.some((id) => data.network.nodes[id].parameters.length));
  graph.light(Math.max(0, weighty));
}

function weights() {
  if (!data.tensors.length) { $("weights-section").hidden = true; return; }
  const partly = data.tensors.find((tensor) => tensor.planes < tensor.all_planes);
  $("weights-count").textContent = `${data.tensors.length + data.tensors_left} tensors`;
  $("weights-note").textContent = partly ? `From ${partly.planes} of ${partly.all_planes} bytes of each weight: ± is how far a figure can be off; histograms are exact.` : "";
  $("weights-more").textContent = data.tensors_left ? `${data.tensors_left} more are not shown.` : "";
  const draw = () => {
    const words = $("find").value.toLowerCase();
    $("weights").replaceChildren(...data.tensors.filter((tensor) => tensor.name.toLowerCase().includes(words)).map((tensor) => tensorCard(tensor, $("counts-log").checked)));
  };
  $("find").addEventListener("input", draw);
  $("counts-log").addEventListener("change", draw);
  draw();
}

function activations() {
  const seen = Object.entries(data.activations);
  $("activations-section").hidden = !seen.length;
  $("activations").append(...seen.map(([id, each]) => activationCard(each, `${data.network.nodes[id].kind} ${data.network.nodes[id].name || id}`)));
}

function table(id, columns, rows) {
  if (!rows.length) return;
  const line = (kind, cells) => make("tr", {}, ...cells.map((cell, n) => make(kind, { textContent: cell, className: columns[n][1] ?? "" })));
  $(id).append(make("thead", {}, line("th", columns.map(([name]) => name))), make("tbody", {}, ...rows.map((row) => line("td", row))));
}

function rest() {
  table("lineage", [["", ""], ["version", "path"], ["kind"], ["after epoch", "number"]], data.lineage.map((each) => [each.what, each.name, each.kind, each.epoch ?? ""]));
  table("snapshots", [["snapshot", "number"], ["epoch", "number"], ["", ""], ["id", "hash"]],
    data.snapshots.map((each) => [each.position, each.epoch ?? "", each.position === data.shown ? "shown here" : "", (each.id ?? "a file of its run").slice(0, 17)]));
  table("files", [["file", "path"], ["size", "number"], ["hash", "hash"]], data.files.map((file) => [file.path, bytes(file.bytes), file.hash.slice(0, 10)]));
  table("metadata", [["metadata", "path"], ["", "path"]], Object.entries(data.metadata).map(([name, value]) => [name, spoken(value)]));
  $("lineage-section").hidden = !data.lineage.length && !data.snapshots.length;
  $("files-section").hidden = !data.files.length && !Object.keys(data.metadata).length;
}

head();
const curves = Object.entries(data.metrics);
$("metrics-section").hidden = !curves.length;
$("metrics").append(...curves.map(([name, each]) => drawCurve(name, each)));
weights();
network();
activations();
rest();
