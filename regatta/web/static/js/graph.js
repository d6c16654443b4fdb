// A network as boxes in rows, at the positions of the layout; one box can be chosen.

const LEAST = 0.25, LEGIBLE = 0.6, MARGIN = 8;

function linePath(network, [source, target, operand, operands, lanes]) {
  const [from, to] = [network.boxes[source], network.boxes[target]];
  const end = to.x + (operand - (operands - 1) / 2) * Math.min(14, (to.width - 20) / Math.max(1, operands));
  let [x, y] = [from.x, from.y + from.height];
  let path = `M${x},${y}`;
  const bend = (toX, toY) => {
    const middle = (toY - y) / 2;
    path += x === toX ? `L${toX},${toY}` : `C${x},${y + middle} ${toX},${toY - middle} ${toX},${toY}`;
    [x, y] = [toX, toY];
  };
  for (const [laneX, laneY] of lanes) {
    bend(laneX, laneY);
    bend(laneX, laneY + to.height);
  }
  bend(end, to.y - 1);
  return path;
}

class Graph {
  constructor(place, network, choose) {
    Object.assign(this, { place, network, choose, chosen: null });
    this.draw();
    this.fit();
    place.tabIndex = 0;
    place.addEventListener("keydown", (event) => this.key(event));
  }

  draw() {
    const { width, height } = this.network;
    this.size = [width + 2 * MARGIN, height + 2 * MARGIN];
    const label = `${Object.keys(this.network.nodes).length} layers in ${this.network.boxes.length} boxes`;
    this.svg = shape("svg", { viewBox: `${-MARGIN} ${-MARGIN} ${this.size[0]} ${this.size[1]}`, role: "group", "aria-label": label }, this.place);
    const arrow = shape("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto" }, shape("defs", {}, this.svg));
    shape("path", { d: "M0,0.5L8,4L0,7.5z" }, arrow);
    this.lines = this.network.lines.map((line) => shape("path", { d: linePath(this.network, line), class: "line", "marker-end": "url(#arrow)" }, this.svg));
    this.boxes = this.network.boxes.map((box, number) => this.drawBox(box, number));
  }

  drawBox(box, number) {
    const { nodes } = this.network;
    const [first, ...rest] = box.members.map((id) => nodes[id]);
    const last = rest.at(-1) ?? first;
    const group = shape("g", { class: `box ${first.kind} ${box.what ?? ""}`, transform: `translate(${box.x - box.width / 2},${box.y})`, role: "button", "aria-label": `${box.title} ${first.name || first.id}` }, this.svg);
    shape("rect", { class: "plate", width: box.width, height: box.height, rx: 5 }, group);
    shape("rect", { class: "stripe", x: 0, y: 0, width: 5, height: box.height, rx: 2 }, group);
    const letters = Math.floor((box.width - 18) / 6.2);
    shape("text", { class: "title", x: 12, y: 17 }, group, shortened(box.title, letters));
    const behind = rest.map((node) => node.kind.replace("LEAKY_", "").toLowerCase()).join(" · ");
    const name = ["INPUT", "OUTPUT"].includes(first.kind) ? sized(last.shape) : first.name || first.id;
    const below = behind ? `${shortened(name, letters - behind.length - 1)} · ${behind}` : name;
    shape("text", { class: "sub", x: 12, y: 32 }, group, shortened(below, letters));
    shape("title", {}, group, `${first.name || first.id}${last.shape ? ` → ${sized(last.shape)}` : ""}`);
    group.addEventListener("click", () => this.light(number));
    return group;
  }

  light(number, scroll = false) {
    this.chosen = number;
    this.boxes.forEach((box, n) => box.classList.toggle("chosen", n === number));
    this.network.lines.forEach(([source, target], n) => this.lines[n].classList.toggle("chosen", source === number || target === number));
    if (scroll) this.boxes[number].scrollIntoView({ block: "nearest", inline: "nearest" });
    this.choose(this.network.boxes[number]);
  }

  key(event) {
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    if (!(event.key in steps) || !this.boxes.length) return;
    event.preventDefault();
    const next = this.chosen === null ? 0 : this.chosen + steps[event.key];
    this.light(Math.min(this.boxes.length - 1, Math.max(0, next)), true);
  }

  zoom(scale) {
    this.scale = Math.min(2, Math.max(LEAST, scale));
    this.svg.setAttribute("width", this.size[0] * this.scale);
    this.svg.setAttribute("height", this.size[1] * this.scale);
  }

  // As wide as its element, but not enlarged, and large enough to read.
  fit() { this.zoom(Math.min(1, Math.max(LEGIBLE, (this.place.clientWidth - 30) / this.size[0]))); }
}
