// Brings the page to life: the table, the filters, the panel, keys and the address.
"use strict";
document.documentElement.classList.add("js");

document.addEventListener("DOMContentLoaded", async () => {
  const cells = new Cells(await unpack($("#cells")));
  const panel = $("#panel");
  const search = $("#search");
  const [nothing, unknown] = [$("#nothing"), $("#unknown")]; // before there are rows, with any ids
  const matrix = new Matrix($("#matrix"), cells, { open, fold });
  let asked = nothingAsked();
  let opener = null; // where the focus goes back to
  let at = null; // { row, column, among } of the panel

  // ── Asking ────────────────────────────────────────────────────────────────────────────────────

  /** Changes what is asked, shows it, and puts it into the address. */
  function ask(change) {
    asked = { ...asked, ...change };
    show();
    address();
  }

  /** A filter changed: what was folded by hand under the last one is not meant for this one. */
  const narrow = (change) => ask({ shut: new Set(), ...change });

  function show() {
    const chosen = cells.select(asked);
    matrix.show(asked, chosen);
    if (at) matrix.mark(at.row, at.column);
    for (const control of $$("[data-ask]")) {
      const { ask: name, value } = control.dataset;
      const on = value == null ? asked[name] : asked[name].has(value);
      control.setAttribute("aria-pressed", String(on));
    }
    for (const select of $$("select[data-list]")) select.value = [...asked[select.dataset.list]][0] ?? "";
    $("#sort").value = asked.sort;
    if (search.value !== asked.q) search.value = asked.q;
    const all = cells.cases.length;
    $("#shown").textContent = narrows(asked)
      ? `${chosen.cases.toLocaleString("en")} of ${many(all, "case")}, ${many(chosen.results, "result")}`
      : many(all, "case");
    unknown.hidden = true;
    $("#reset").hidden = !narrows(asked) && !asked.target.size;
    $("#unfold").setAttribute("aria-pressed", String(cells.themes.every(({ name }) => asked.open.has(name))));
    nothing.hidden = chosen.cases > 0;
  }

  function address() {
    history.replaceState(null, "", toAddress(asked));
  }

  function fold(id, open) {
    const [opened, shut] = [new Set(asked.open), new Set(asked.shut)];
    opened.delete(id);
    shut.delete(id);
    (open ? opened : shut).add(id);
    const control = () => $(".fold", matrix.row(id) ?? make("tr"));
    steady(control, () => ask({ open: opened, shut }));
    control()?.focus({ preventScroll: true });
  }

  /** Does what changes the layout, and keeps an element where it is on the screen. */
  function steady(element, change) {
    const before = element()?.getBoundingClientRect().top;
    change();
    const after = element()?.getBoundingClientRect().top;
    if (before != null && after != null) scrollBy(0, after - before);
  }

  for (const control of $$("[data-ask]")) {
    control.addEventListener("click", () => {
      const { ask: name, value } = control.dataset;
      if (value == null) return narrow({ [name]: !asked[name] });
      const values = new Set(asked[name]);
      if (!values.delete(value)) values.add(value);
      narrow({ [name]: values });
    });
  }
  for (const select of $$("select[data-list]")) {
    select.addEventListener("change", () =>
      narrow({ [select.dataset.list]: new Set(select.value ? [select.value] : []) }),
    );
  }
  $("#sort").addEventListener("change", (event) => ask({ sort: event.target.value }));
  $(".jump").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment says what is asked
    matrix.enter();
  });
  panel.addEventListener("click", (event) => {
    const near = event.target.closest("a[href^='#page:']");
    if (!near) return;
    event.preventDefault();
    const page = findingOf(decodeURIComponent(near.getAttribute("href").slice(6)), true);
    near.closest(".finding").after(page);
    $("summary", page).focus();
  });
  search.addEventListener("input", () => narrow({ q: search.value }));
  $("#reset").addEventListener("click", () => {
    ask({ ...nothingAsked(), anchor: asked.anchor, open: asked.open, sort: asked.sort });
    search.focus();
  });
  $("#unfold").addEventListener("click", (event) => {
    const all = event.target.getAttribute("aria-pressed") !== "true";
    const names = cells.themes.map(({ name }) => name);
    ask({ open: new Set(all ? names : []), shut: new Set(all ? [] : names) });
  });

  // ── The panel ─────────────────────────────────────────────────────────────────────────────────

  /** Shows all about a cell. `from`: what was clicked; `among`: the cases to step through. */
  function open(row, column, from = null, among = null) {
    const one = cells.cases[row];
    if (!one?.results[column]) return;
    if (from?.closest("#matrix :is(.theme, .group)") && among) {
      among = [...among].sort((a, b) => {
        const [x, y] = [cells.cases[a].results[column], cells.cases[b].results[column]];
        return cells.worse(x, y) ? -1 : cells.worse(y, x) ? 1 : 0;
      });
      row = among[0];
    }
    opener = from ?? opener;
    at = { row, column, among: among?.length > 1 ? among : null };
    steady(() => opener, fill);
    panel.focus({ preventScroll: true });
    address();
  }

  function fill() {
    const { row, column, among } = at;
    const details = new Details(cells, row, column);
    const { result, about, group, target } = details;
    asked.anchor = `${about.id}@${target.label}`;
    const mark = markOf(result);
    const verdict = make(`span.v.${ranksAs(result)}${mark && `.${mark}`}`, icon(result.verdict), result.verdict, mark && make("b", mark));
    const place = among?.indexOf(row);
    const steps = among && [
      button("Previous", () => step(-1), "button.step"),
      make("span", `${place + 1} of ${among.length}`),
      button("Next", () => step(1), "button.step"),
    ];
    if (steps) [steps[0].disabled, steps[2].disabled] = [place === 0, place === among.length - 1];
    const parts = present(
      make("div.top", verdict, make("span", "on ", make("bdi.target", breakable(target.label))), button("Close", shut, "button.close")),
      steps && make("div.steps", steps),
      make("h2", make("bdi", group.title)),
      make("p.case", make("bdi.id", about.id)),
      details.parts(),
    );
    panel.replaceChildren(...parts);
    panel.hidden = false;
    panel.scrollTop = 0;
    document.documentElement.classList.add("beside");
    matrix.mark(row, column);
  }

  function step(by) {
    const next = at?.among?.[at.among.indexOf(at.row) + by];
    if (next == null) return;
    at.row = next;
    const held = document.activeElement.matches(".step");
    fill();
    const same = $$("#panel .step")[by < 0 ? 0 : 1];
    (held && !same.disabled ? same : panel).focus({ preventScroll: true });
    address();
  }

  function shut() {
    const { row } = at;
    const back = () => (opener?.isConnected ? opener : $("button", matrix.row(cells.cases[row].id) ?? make("tr")));
    steady(back, () => {
      panel.hidden = true;
      document.documentElement.classList.remove("beside");
    });
    matrix.mark();
    (back() ?? search).focus({ preventScroll: true });
    opener = at = null;
    asked.anchor = cells.cases[row].id;
    address();
  }

  // ── Keys and the address ──────────────────────────────────────────────────────────────────────

  const help = $("#help");
  $("#show-help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || help.open) return;
    const writing = event.target.matches("input, textarea");
    if (event.target === search && ["Enter", "ArrowDown"].includes(event.key)) {
      event.preventDefault();
      matrix.enter();
      return;
    }
    if (event.key === "Escape") {
      if (at) shut();
      else if (writing && asked.q) narrow({ q: "" });
      return;
    }
    const acts = { "/": () => search.focus(), "?": () => help.showModal(), j: () => step(1), k: () => step(-1) };
    if (writing || !acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  });

  /** Unfolds what a name stands in, and brings it into view, whatever hides it. */
  function aim(id) {
    const single = cells.groups.findIndex((group) => group.id === id);
    const number = cells.numbers.get(id) ?? (single >= 0 && cells.members[single].length === 1 ? cells.members[single][0] : undefined);
    const group = number == null ? single : cells.cases[number].group;
    const theme = group >= 0 ? cells.themes[cells.groups[group].theme].name : id;
    if (group < 0 && !cells.themes.some(({ name }) => name === id)) return null;
    const opened = new Set(asked.open).add(theme);
    if (group >= 0) opened.add(cells.groups[group].id);
    const name = number == null ? id : cells.cases[number].id;
    asked.open = opened;
    show();
    if (!matrix.row(name)) {
      asked = { ...nothingAsked(), anchor: asked.anchor, open: opened };
      show();
    }
    const row = matrix.row(name);
    $("#matrix .aimed")?.classList.remove("aimed");
    row?.classList.add("aimed");
    row?.scrollIntoView({ block: "center" });
    return row;
  }

  function follow() {
    asked = fromAddress(location.hash);
    const { anchor } = asked;
    const before = ({ label }) => (anchor.endsWith(`@${label}`) ? anchor.slice(0, -label.length - 1) : null);
    const column = cells.targets.findIndex((target) => cells.numbers.has(before(target)));
    show();
    if (column < 0) {
      if (at) shut();
      asked.anchor = anchor;
      const lost = Boolean(anchor) && !aim(anchor);
      unknown.hidden = !lost;
      $("bdi", unknown).textContent = lost ? anchor : "";
      address();
      return;
    }
    const number = cells.numbers.get(before(cells.targets[column]));
    aim(cells.cases[number].id);
    const cell = matrix.cell(number, column);
    open(number, column, cell, cell && matrix.among(cell));
  }

  /** Who asks for a part of the table wants to see it. */
  function arrive() {
    follow();
    if (!asked.anchor && (narrows(asked) || asked.target.size)) $(".tools").scrollIntoView();
  }

  addEventListener("hashchange", arrive);
  addEventListener("beforeprint", () => matrix.finish());
  arrive();
  document.documentElement.classList.add("ready");
  document.dispatchEvent(new Event("ready"));
  performance.mark("ready");
});
