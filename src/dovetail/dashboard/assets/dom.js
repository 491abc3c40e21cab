"use strict";
// Elements made of names and text: no text that came from a file ever becomes markup.
const D = {};
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const fill = (node, props, children) => {
    for (const [name, value] of Object.entries(props || {})) {
      if (value === null || value === undefined || value === false) continue;
      if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
      else if (name === "text") node.textContent = value;
      else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
      else if (/^(on|style$|srcdoc$)/.test(name)) throw new Error("not an attribute: " + name);
      else if (name === "href" && !/^#/.test(value)) throw new Error("links stay on the page");
      else node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  };
  D.el = (tag, props, ...children) => {
    const [name, ...classes] = tag.split(".");
    const node = document.createElement(name || "div");
    if (classes.length) node.className = classes.join(" ");
    return fill(node, props, children);
  };
  D.svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);
  // What is drawn again keeps the focus where it was: on what has the same name.
  const nameOf = (node) => node.tagName + "|" + (node.id || node.getAttribute("aria-label") || node.textContent.slice(0, 80));
  D.clear = (node, ...children) => {
    const focused = node.contains(document.activeElement) && node !== document.activeElement ? document.activeElement : null;
    const name = focused && nameOf(focused);
    node.replaceChildren(...children.flat(9).filter(Boolean));
    if (name && !node.contains(document.activeElement)) {
      const again = [...node.querySelectorAll(focused.tagName)].find((each) => nameOf(each) === name);
      if (again) again.focus({ preventScroll: true });
    }
    return node;
  };

  D.card = (title, ...children) => D.el("section.card", null, title ? D.el("h2", { text: title }) : null, children);
  // Figures in tiles: [name, value, what stands below it].
  D.tiles = (facts) => D.el("dl.tiles", null, facts.filter(Boolean).map(([name, value, under]) =>
    D.el("div.tile", null, D.el("dt", { text: name }),
      D.el("dd", null, D.el("div.value", { text: value }), under ? D.el("div.under", { text: under }) : null))));
  // A table; columns that begin with `#` hold numbers. Cells are text or elements; the first heads its row.
  D.table = (caption, columns, rows, marks) => D.el("div.wide", { tabindex: "0", role: "region", "aria-label": caption },
    D.el("table", null, D.el("caption", { text: caption }),
      D.el("thead", null, D.el("tr", null, columns.map((name) =>
        D.el("th", { scope: "col", class: name[0] === "#" ? "num" : null, text: name.replace(/^#/, "") })))),
      D.el("tbody", null, rows.map((row, at) => D.el("tr", { class: marks && marks(at) ? "on" : null },
        row.map((cell, place) => D.el(place ? "td" : "th", {
          scope: place ? null : "row",
          class: columns[place][0] === "#" ? "num" : null,
        }, cell === null || cell === undefined ? "" : cell)))))));
  D.meter = (part, words) => {
    const inner = D.el("span");
    inner.style.width = Math.max(0, Math.min(100, 100 * (part || 0))) + "%";
    return D.el("div.cell-meter", null, D.el("div.meter", { "aria-hidden": "true" }, inner), D.el("span", { text: words }));
  };
  D.progress = (part, name) => {
    const inner = D.el("span");
    const percent = Math.max(0, Math.min(100, 100 * (part || 0)));
    inner.style.width = percent + "%";
    return D.el("div.meter", { role: "progressbar", "aria-label": name, "aria-valuemin": 0, "aria-valuemax": 100,
      "aria-valuenow": Math.round(percent) }, inner);
  };
  D.dot = (colour) => { const node = D.el("span.dot", { "aria-hidden": "true" }); node.style.background = colour; return node; };
  D.key = (entries) => D.el("ul.key", null, entries.map(([name, colour]) => D.el("li", null, D.dot(colour), name)));
  D.error = (problem) => D.el("div.error", { role: "alert" }, D.el("strong", { text: problem.error || problem.message || String(problem) }),
    problem.hint ? D.el("div.note", { text: problem.hint }) : null);
  D.button = (text, act, kind) => D.el("button" + (kind ? "." + kind : ""), { type: "button", text, on: { click: act } });
  D.select = (name, options, chosen, act) => D.el("select", { "aria-label": name, on: { change: (event) => act(event.target.value) } },
    options.map(([value, text]) => { const option = D.el("option", { value, text }); option.selected = value === chosen; return option; }));
  let clearing;
  D.say = (text) => {
    document.getElementById("status").textContent = text;
    clearTimeout(clearing);
    clearing = setTimeout(() => { document.getElementById("status").textContent = ""; }, 5000);
  };
  D.theme = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

  // The same order of colours as the charts; those of types come first.
  const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7a5ab0", "#8a2f2f", "#8ed9aa",
    "#7b4c5e", "#bdd9ff", "#7184ec", "#974200", "#a3427f", "#55c671", "#2f4caa", "#97bdc6", "#84684c", "#97ec84"];
  D.colour = (at) => COLOURS[at % COLOURS.length];
  D.inkOn = (colour) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16) / 255)
      .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#101010" : "#ffffff";
  };
  // Pictures draw themselves again when the theme or their width changes.
  const pictures = new Set();
  D.picture = (node, draw) => {
    const picture = { node, draw };
    pictures.add(picture);
    let width = 0;
    new ResizeObserver(() => { if (node.clientWidth && node.clientWidth !== width) { width = node.clientWidth; draw(); } }).observe(node);
    return picture;
  };
  D.redraw = () => { for (const each of pictures) { if (each.node.isConnected) each.draw(); else pictures.delete(each); } };
  D.canvas = (height, label) => {
    const canvas = D.el("canvas.picture", { role: "img", "aria-label": label });
    const begin = () => {
      const width = canvas.parentNode ? canvas.parentNode.clientWidth : 600, scale = devicePixelRatio || 1;
      const tall = typeof height === "function" ? height() : height;
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(tall * scale);
      canvas.style.height = tall + "px";
      const pen = canvas.getContext("2d");
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, width, tall);
      pen.font = "12px system-ui, sans-serif";
      pen.textBaseline = "middle";
      return { pen, width, tall };
    };
    return { canvas, begin };
  };
  D.shorten = (text, pen, width) => {
    if (pen.measureText(text).width <= width) return text;
    let cut = text;
    while (cut.length > 1 && pen.measureText(cut + "…").width > width) cut = cut.slice(0, -1);
    return cut.length > 1 ? cut + "…" : "";
  };
})();
