// Cluster: every GPU as a bar, by node, with totals by product. Only the rows on the screen are in the document.

import { count, h, memory, percent, plural, shortProduct, show, span } from "./dom.js";
import { get } from "./server.js";
import { bar, legend, parts, sentence } from "./bars.js";

const WINDOW = 40;

export function open(main) {
  const filters = { q: "", product: "", show: "all" };
  const totals = h("section", { class: "tiles", "aria-label": "Totals" });
  const products = h("section", { class: "products", "aria-label": "By GPU product" });
  const found = h("p", { class: "found", role: "status" });
  const canvas = h("div", { class: "canvas" });
  const list = h("div", { class: "nodes", role: "list", "aria-label": "Nodes", tabindex: "0" }, canvas);
  const card = h("div", { class: "card", id: "holders", role: "tooltip", hidden: true });
  const product = h("select", { id: "product", "aria-label": "GPU product" }, h("option", { value: "" }, "All GPUs"));
  const view = { refresh, wake: () => {} };
  let data = null;
  let pinned = null; // [node, pool, gpu] whose holders are shown
  let nodesAt = new Map(); // by number in the list
  let answered = "";

  main.append(
    h("h1", { class: "unseen" }, "Cluster"), totals, products,
    h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
      h("input", { type: "search", id: "search", placeholder: "Search nodes and pods", "aria-label": "Search nodes and pods",
        maxlength: "253", oninput: (event) => filter("q", event.target.value) }),
      product,
      h("select", { id: "show", "aria-label": "Which nodes", onchange: (event) => filter("show", event.target.value) },
        [["all", "All nodes"], ["room", "With room"], ["busy", "In use"], ["problems", "With problems"]].map(([value, text]) =>
          h("option", { value }, text))),
      legend()),
    found, list, card);
  product.addEventListener("change", () => filter("product", product.value));

  function filter(name, value) {
    filters[name] = value;
    list.scrollTop = 0;
    nodesAt.clear();
    view.wake();
  }

  // --- the window of nodes

  const rowHeight = () => parseFloat(getComputedStyle(list).getPropertyValue("--row")) || 64;
  const first = () => Math.max(0, Math.floor(list.scrollTop / rowHeight()) - 6);
  let waiting = false;
  let asking = false;

  list.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(async () => {
      waiting = false;
      drawRows();
      await fetchMissing();
    });
  }, { passive: true });

  async function fetchMissing() {
    if (asking || data === null) return;
    const last = Math.min(data.matching, first() + visible());
    for (let at = first(); at < last; at += 1) {
      if (nodesAt.has(at)) continue;
      asking = true;
      try {
        await load(at);
      } catch {
        return; // the next refresh reports it
      } finally {
        asking = false;
      }
      drawRows();
      fetchMissing();
      return;
    }
  }

  const visible = () => Math.ceil(list.clientHeight / rowHeight()) + 12;

  async function load(offset) {
    const asked = JSON.stringify(filters);
    const answer = await get("cluster", { ...filters, offset, limit: Math.min(100, Math.max(WINDOW, visible())) });
    if (asked !== JSON.stringify(filters)) return answer;
    if (answered !== asked || data?.matching !== answer.matching) nodesAt.clear();
    answered = asked;
    data = answer;
    answer.nodes.forEach((node, at) => nodesAt.set(answer.offset + at, node));
    for (const known of nodesAt.keys()) {
      if (Math.abs(known - offset) > 400) nodesAt.delete(known);
    }
    return answer;
  }

  async function refresh() {
    const answer = await load(first());
    drawTotals(answer);
    drawRows();
    drawCard();
    return answer.status;
  }

  function drawRows() {
    if (data === null) return;
    const height = rowHeight();
    canvas.style.height = `${data.matching * height}px`;
    const start = first();
    const rows = [];
    for (let at = start; at < Math.min(data.matching, start + visible()); at += 1) {
      rows.push(row(nodesAt.get(at), at, height));
    }
    show(canvas, rows);
    show(found, data.matching === data.nodes_total ? plural(data.nodes_total, "node")
      : `${count(data.matching)} of ${plural(data.nodes_total, "node")}`);
    list.classList.toggle("empty", data.matching === 0);
  }

  function row(node, at, height) {
    const style = { transform: `translateY(${at * height}px)` };
    const place = { role: "listitem", class: "node", style, "data-key": at, "aria-setsize": data.matching, "aria-posinset": at + 1 };
    if (!node) return h("div", { ...place, class: "node waiting" }, h("span", { class: "name" }, "…"));
    const kinds = [...new Set(node.pools.map((pool) => shortProduct(pool.product)))].join(", ");
    return h("div", place,
      h("div", { class: "who" },
        h("span", { class: "name", title: node.name }, node.name),
        h("span", { class: "kind" }, node.problem ? h("span", { class: "problem", title: node.problem }, node.problem)
          : [kinds || "no GPU", node.sharing ? h("span", { class: "tag" }, "shared") : null,
            node.pools.some((pool) => pool.replicas > 1) ? h("span", { class: "tag" }, "time slices") : null])),
      h("div", { class: "gpus" }, node.pools.map((pool, poolAt) => pool.gpus.map((gpu, gpuAt) => {
        const chosen = pinned && pinned[0] === node.name && pinned[1] === poolAt && pinned[2] === gpuAt;
        const label = `${node.name}, GPU ${gpu.index}, ${sentence(gpu)}`;
        return h("button", { type: "button", class: `gpu ${chosen ? "chosen" : ""}`, "data-node": node.name, "data-at": at,
          "data-pool": poolAt, "data-gpu": gpuAt, "aria-label": label, "aria-expanded": chosen ? "true" : "false" },
        bar(gpu), h("span", { class: "note", "aria-hidden": "true" }, note(gpu)));
      }))));
  }

  // --- who holds a GPU

  const aimed = (event) => event.target.closest?.("button.gpu");
  const identity = (button) => [button.dataset.node, Number(button.dataset.pool), Number(button.dataset.gpu), Number(button.dataset.at)];
  let hovered = null;
  list.addEventListener("pointerover", (event) => {
    const button = aimed(event);
    if (event.pointerType === "mouse" && button) { hovered = identity(button); drawCard(button); }
  });
  list.addEventListener("pointerleave", () => { hovered = null; drawCard(); });
  list.addEventListener("focusin", (event) => {
    const button = aimed(event);
    if (button?.matches(":focus-visible")) { hovered = identity(button); drawCard(button); }
  });
  list.addEventListener("focusout", () => { hovered = null; drawCard(); });
  list.addEventListener("click", (event) => {
    const button = aimed(event);
    if (!button) return;
    const chosen = identity(button);
    pinned = pinned && String(pinned) === String(chosen) ? null : chosen;
    hovered = null;
    drawRows();
    drawCard(button);
  });
  const dismissed = (event) => {
    if (event.key === "Escape") { pinned = hovered = null; drawRows(); drawCard(); }
  };
  main.addEventListener("keydown", dismissed);

  function drawCard(button = null) {
    const [name, poolAt, gpuAt, at] = hovered ?? pinned ?? [];
    const node = at === undefined ? null : nodesAt.get(at);
    const gpu = node && node.name === name ? node.pools[poolAt]?.gpus[gpuAt] : null;
    card.hidden = !gpu;
    if (!gpu) return;
    const pool = node.pools[poolAt];
    const now = data.status.now;
    show(card,
      h("strong", null, `${node.name} · GPU ${gpu.index}`),
      h("span", { class: "dim" }, `${shortProduct(pool.product)}, ${pool.resource}${
        pool.picked_by_kubelet && pool.replicas === 1 ? "; the kubelet picks, so this is one of its devices" : ""}`),
      h("table", null, h("tbody", null, Object.entries(parts(gpu)).filter(([, mib]) => mib > 0).map(([part, mib]) =>
        h("tr", null, h("td", null, h("i", { class: `key ${part}` }), part === "whole" ? "no forecast" : part),
          h("td", { class: "number" }, memory(mib)), h("td", { class: "number dim" }, percent(mib / gpu.size_mib)))))),
      gpu.holders.length ? h("ul", { class: "holders" }, gpu.holders.map((holder) => h("li", null,
        h("a", { href: `#pods/${encodeURI(holder.pod)}` }, holder.pod), " ",
        h("span", { class: "dim" }, [
          holder.need_mib === null ? "describes no task" : `promised ${memory(holder.need_mib)}`,
          holder.used_mib === null ? "" : `, uses ${memory(holder.used_mib)}`,
          holder.since === null ? "" : `, for ${span(now - holder.since)}`,
          holder.state === "bound" ? ", until it ends" : `, ${holder.state}`])))) : h("p", { class: "dim" }, "Nobody holds it."));
    const aim = button ?? list.querySelector(`button.gpu[data-at="${at}"][data-pool="${poolAt}"][data-gpu="${gpuAt}"]`);
    if (aim) moveCard(aim.getBoundingClientRect());
  }

  function moveCard(near) {
    const own = card.getBoundingClientRect();
    const left = Math.min(Math.max(8, near.left), window.innerWidth - own.width - 8);
    const below = near.bottom + 6 + own.height < window.innerHeight;
    card.style.left = `${Math.max(8, left)}px`;
    card.style.top = `${below ? near.bottom + 6 : Math.max(8, near.top - own.height - 6)}px`;
  }

  // --- totals

  function drawTotals({ totals: sums, products: each, status, nodes_total: nodes }) {
    const whole = { ...sums, held_mib: 0, whole: false };
    const piece = parts(whole);
    const tile = (value, name, more, kind = "") => h("div", { class: `tile ${kind}` },
      h("b", null, value), h("span", null, name), h("small", null, more));
    show(totals,
      tile(count(sums.gpus), sums.gpus === 1 ? "GPU" : "GPUs", `${memory(sums.size_mib)} on ${plural(nodes, "node")}`),
      tile(percent(sums.promised_mib / sums.size_mib), "promised", memory(sums.promised_mib), "promised"),
      tile(status.telemetry ? percent(sums.used_mib / sums.size_mib) : "–", "used now",
        status.telemetry ? memory(sums.used_mib) : "no telemetry", "used"),
      tile(memory(sums.unmanaged_mib), "unmanaged", "nobody's promise", "unmanaged"),
      tile(memory(piece.free), "free", percent(piece.free / sums.size_mib), "free"),
      h("a", { class: `tile ${status.pods.waiting ? "waits" : ""}`, href: "#pods?state=waiting" },
        h("b", null, count(status.pods.waiting ?? 0)), h("span", null, status.pods.waiting === 1 ? "pod waits" : "pods wait"),
        h("small", null, `${count(status.pods.running + status.pods.placed)} placed`)));
    show(products, each.map((sum) => h("button", { type: "button", class: "product", "data-key": sum.product,
      "data-product": sum.product, "aria-pressed": filters.product === sum.product ? "true" : "false",
      "aria-label": `${shortProduct(sum.product)}, ${plural(sum.gpus, "GPU")}, ${sentence({ ...sum, held_mib: 0 })}` },
    h("span", { class: "name" }, shortProduct(sum.product)),
    h("span", { class: "dim" }, `${count(sum.gpus)} × `, memory(sum.size_mib / Math.max(1, sum.gpus))),
    bar({ ...sum, held_mib: 0 }))));
    const options = ["", ...each.map((sum) => sum.product)];
    if ([...product.options].map((option) => option.value).join() !== options.join()) {
      product.replaceChildren(...options.map((name) => h("option", { value: name }, name ? shortProduct(name) : "All GPUs")));
      product.value = filters.product;
    }
  }

  products.addEventListener("click", (event) => {
    const chosen = event.target.closest("button.product")?.dataset.product;
    if (chosen === undefined) return;
    product.value = filters.product === chosen ? "" : chosen;
    filter("product", product.value);
  });

  return view;
}

const note = (gpu) => {
  if (gpu.whole && gpu.promised_mib === 0) return "no forecast";
  const free = parts(gpu).free;
  return free >= gpu.size_mib * 0.995 ? "free" : free < 512 ? "full" : `${(free / 1024).toFixed(free < 10240 ? 1 : 0)} free`;
};
