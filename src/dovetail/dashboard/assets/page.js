"use strict";
// Which view is shown: what stands behind the # of the address says.
(() => {
  const TITLES = { report: "Report", plan: "Plan", run: "Run", cluster: "Cluster", simulate: "Simulate" };
  const main = document.getElementById("main");
  let things = null, stop = null, turn = 0;
  D.workloads = new Set();
  D.go = (view, name) => { const hash = "#" + view + (name ? "/" + encodeURIComponent(name) : ""); if (location.hash === hash) render(); else location.hash = hash; };

  const shown = () => {
    if (!D.source.isLive) return ["report", things.plans && "plan", things.runs && "run", things.workloads.length && "simulate"].filter(Boolean);
    return [things.plans && "plan", things.plans && "run", things.daemon && "cluster", things.plans && "simulate"].filter(Boolean);
  };
  const first = () => (!D.source.isLive ? "report" : things.problems.length ? "plan" : things.runs ? "run" : things.daemon ? "cluster" : things.workloads.length ? "simulate" : shown()[0]);
  const render = async () => {
    const mine = ++turn;
    if (stop) { stop(); stop = null; }
    const [word, ...rest] = location.hash.slice(1).split("/");
    const view = shown().includes(word) ? word : first();
    let name;
    try { name = rest.length ? decodeURIComponent(rest.join("/")) : undefined; } catch { name = undefined; }
    D.clear(document.getElementById("tabs"), shown().map((each) => D.el("li", null, D.el("a", { href: "#" + each, text: TITLES[each], "aria-current": each === view ? "page" : null }))));
    document.title = TITLES[view] + " · " + (D.source.isLive ? "Dovetail" : D.source.report.title);
    const root = D.el("div", { class: "view-" + view });
    D.clear(main, root);
    try {
      const found = await D.views[view](root, things, name);
      if (mine === turn) stop = found || null; else if (found) found();
    } catch (problem) { D.clear(root, D.error(problem)); }
  };

  // A file that was opened or dropped is read here, and its text goes with each request.
  const MOST = 900000;
  const take = async (file) => {
    if (file.size > MOST) { D.say(`${file.name} is larger than ${D.words.bytes(MOST)}`); return; }
    const text = await file.text();
    try {
      const found = await D.source.task({ do: "describe", name: file.name, text });
      D.dropped.set(file.name, text);
      if (found.kind === "workload") D.workloads.add(file.name); else D.workloads.delete(file.name);
      D.go(found.kind === "workload" ? "simulate" : "plan", file.name);
    } catch (problem) { D.clear(main, D.error(problem), D.button("Back", render, "quiet")); }
  };
  D.fileButton = (text) => D.el("label.button.quiet.file", null, text,
    D.el("input", { type: "file", accept: ".toml,.json", "aria-label": text, on: { change: (event) => { if (event.target.files.length) take(event.target.files[0]); } } }));
  document.addEventListener("dragover", (event) => { if (things && things.plans && D.source.isLive) { event.preventDefault(); document.body.classList.add("drop"); } });
  document.addEventListener("dragleave", (event) => { if (!event.relatedTarget) document.body.classList.remove("drop"); });
  document.addEventListener("drop", (event) => {
    document.body.classList.remove("drop");
    if (!things || !things.plans || !D.source.isLive) return;
    event.preventDefault();
    if (event.dataTransfer.files.length) take(event.dataTransfer.files[0]);
  });

  const THEMES = ["system", "light", "dark"], dark = matchMedia("(prefers-color-scheme: dark)");
  let theme = "system";
  try { theme = localStorage.getItem("dovetail-theme") || "system"; } catch { /* a file may have no store */ }
  const useTheme = () => {
    document.documentElement.dataset.theme = theme === "system" ? (dark.matches ? "dark" : "light") : theme;
    document.getElementById("theme").textContent = "Theme: " + theme;
    D.redraw();
  };
  dark.addEventListener("change", useTheme);
  document.getElementById("theme").addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem("dovetail-theme", theme); } catch { /* then it holds for this page */ }
    useTheme();
  });
  useTheme();

  document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); main.scrollIntoView(); });

  D.views.report = async (root) => {
    const report = D.source.report, W = D.words;
    const entry = (view, each, words) => D.el("li", null, D.el("a", { href: "#" + view + "/" + encodeURIComponent(each.name), text: each.name }), " " + words, each.note ? D.el("div.note", { text: each.note }) : null);
    const list = (title, items) => (items.length ? D.card(title, D.el("ul", null, items)) : null);
    D.clear(root, D.el("div.head", null, D.el("h1", { text: report.title })),
      report.notes.map((note) => D.el("p", { text: note })),
      list("Plans", report.plans.map((each) => entry("plan", each, each.plan.error ? "has no plan" : `${W.count(each.plan.samples_per_s)} samples/s for ${W.usd(each.plan.cost)}`))),
      list("Runs", report.runs.map((each) => entry("run", each, `${each.facts.model || ""} ${W.count(each.facts.samples)} samples, loss ${W.figure(each.facts.loss)}, AUC ${W.figure(each.facts.auc)}`))),
      list("Simulations", report.simulations.map((each) => entry("simulate", each, `${W.plural(each.workload.jobs.length, "job")}, ${W.plural(Object.keys(each.trials).length, "policy").replace("policys", "policies")}`))),
      D.el("p.note", { text: `Made ${W.day(report.made_unix_s)} by Dovetail ${report.version}. This file asks nobody for anything.` }));
    return null;
  };
  addEventListener("hashchange", render);
  D.source.things().then((found) => { things = found; return render(); }).catch((problem) => D.clear(main, D.error(problem)));
})();
