// The table: themes unfold into rows, rows into their axes and single cases. Only what is unfolded
// is there, and of much only what fits into a moment; the rest follows.
"use strict";

const MOMENT = 5; // ms, of which layout takes as many again
const UNFOLDED_THEMES = 40; // rows: what is asked for unfolds by itself while it is no more than that
const UNFOLDED_ROWS = 16; // cases: likewise

class Matrix {
  #rows = null; // those still to be made
  #pending = 0;

  /** `open(number, column, from, among)` opens a cell, `fold(id, open)` a theme or row. */
  constructor(table, cells, { open, fold }) {
    this.table = table;
    this.cells = cells;
    this.current = ""; // "ROW COLUMN" of the one cell that the tab key leads to
    table.addEventListener("click", (event) => {
      const folding = event.target.closest(".fold");
      const cell = event.target.closest("button.v");
      const shown = event.target.closest("[data-all]");
      if (folding) fold(folding.closest("tr").id, folding.getAttribute("aria-expanded") !== "true");
      if (shown) this.#showAll(shown);
      if (!cell) return;
      this.#aimAt(cell);
      open(Number(cell.dataset.case), Number(cell.dataset.column), cell, this.among(cell));
    });
    table.addEventListener("keydown", (event) => this.#move(event));
    table.addEventListener("focusin", (event) => {
      if (event.target.matches(".v, .fold, th a, [data-all]")) this.#aimAt(event.target);
    });
  }

  /** Shows what is asked for, of which `chosen` is what `Cells.select` found. */
  show(asked, chosen) {
    const focused = this.table.contains(document.activeElement) ? this.#place(document.activeElement) : null;
    this.asked = asked;
    this.chosen = chosen;
    cancelAnimationFrame(this.#pending);
    this.table.classList.toggle("few", chosen.columns.length < 4);
    document.body.classList.toggle("wide", chosen.columns.length > 3);
    this.table.style.minWidth = chosen.columns.length > 3 ? `${16 + 8.75 * chosen.columns.length}rem` : "";
    for (const part of [...this.table.tBodies, this.table.tHead]) part?.remove();
    this.table.append(this.#head());
    this.#rows = this.#make();
    this.#fill(MOMENT);
    this.#current()?.setAttribute("tabindex", "0");
    if (focused) this.#current(focused)?.focus({ preventScroll: true });
  }

  /** The row of a theme, an entry or a case, made if it is still to come; null if it is not shown. */
  row(id) {
    if (!this.#byId(id)) this.#fill(Infinity);
    return this.#byId(id);
  }

  /** Among the rows alone: an id may be that of any other part of the page. */
  #byId(id) {
    return [...this.table.rows].find((row) => row.id === id) ?? null;
  }

  /** The cell of a case on a target, if its row is there. */
  cell(number, column) {
    return $(`button[data-column="${column}"]`, this.row(this.cells.cases[number].id) ?? make("tr"));
  }

  /** Marks the cells of a case on a target, in its row and its row's axes, and no others. */
  mark(number = null, column = null) {
    for (const cell of $$("[aria-current]", this.table)) cell.removeAttribute("aria-current");
    if (number == null) return;
    const cells = $$(`[data-case="${number}"][data-column="${column}"]`, this.table);
    for (const cell of cells.filter((one) => !one.matches(".tally"))) cell.setAttribute("aria-current", "true");
  }

  /** The cases to step through from a cell: those of its row that are asked for, on its target. */
  among(cell) {
    const { chosen, cells } = this;
    const column = Number(cell.dataset.column);
    const row = cell.closest("#matrix > tbody > tr");
    const meant = (i) => {
      const result = cells.cases[i].results[column];
      return result && (!row.matches(".theme, .group") || chosen.meant(result));
    };
    return (row.among ?? [Number(cell.dataset.case)]).filter((i) => (chosen.shown[i] || row.matches(".member, .grid")) && meant(i));
  }

  /** Puts the focus into the table, where the tab key would. */
  enter() {
    this.#current()?.focus();
  }

  /** Everything, for paper. */
  finish() {
    this.#fill(Infinity);
  }

  // ── Rows ────────────────────────────────────────────────────────────────────────────────────────

  #fill(moment) {
    const end = performance.now() + moment;
    while (this.#rows) {
      if (this.#rows.next().done) this.#rows = null;
      if (performance.now() > end) break;
    }
    this.table.setAttribute("aria-busy", String(this.#rows != null));
    if (this.#rows) this.#pending = requestAnimationFrame(() => this.#fill(MOMENT));
  }

  /** Appends a row each time it is asked for the next. */
  *#make() {
    const { cells, asked } = this;
    const { among, shown } = this.chosen;
    const narrow = narrows(asked);
    const entries = cells.byTheme.map((groups) =>
      groups.filter((group) => cells.members[group].some((i) => shown[i])),
    );
    let themes = entries.map((groups, theme) => ({ theme, groups })).filter(({ groups }) => groups.length);
    if (asked.sort) {
      const worst = (items, casesOf) => {
        const order = new Map(items.map((item) => [item, cells.badness(casesOf(item), this.chosen.columns)]));
        return [...items].sort((one, other) => inTurn(order.get(one), order.get(other)));
      };
      const casesOf = (group) => cells.members[group].filter((i) => shown[i]);
      themes = worst(themes, ({ groups }) => groups.flatMap(casesOf));
      for (const one of themes) one.groups = worst(one.groups, casesOf);
    }
    const rows = themes.reduce((sum, { groups }) => sum + groups.length, 0);
    const unfold = rows <= UNFOLDED_THEMES && (narrow || cells.groups.length <= UNFOLDED_THEMES);
    for (const { theme, groups } of themes) {
      const { name } = cells.themes[theme];
      const body = make("tbody");
      this.table.append(body);
      const open = this.#isOpen(name, unfold || themes.length === 1);
      const members = groups.flatMap((group) => cells.members[group].filter((i) => among[i]));
      body.append(this.#themeRow(theme, open, groups, members));
      yield;
      if (!open) continue;
      const siblings = members.filter((i) => shown[i]);
      for (const group of groups) yield* this.#entry(body, group, narrow && this.chosen.cases <= UNFOLDED_ROWS, siblings);
    }
  }

  *#entry(body, group, unfold, siblings) {
    const { cells } = this;
    const { among, shown } = this.chosen;
    const all = cells.members[group];
    const members = all.filter((i) => among[i]);
    if (all.length === 1) {
      body.append(this.#caseRow(all[0], "single", null, siblings));
      yield;
      return;
    }
    const open = this.#isOpen(cells.groups[group].id, unfold);
    body.append(this.#groupRow(group, open, members));
    yield;
    if (!open) return;
    const grid = this.#gridRow(group, members);
    if (grid) {
      body.append(grid);
      yield;
    }
    const meant = members.filter((i) => shown[i]);
    const widths = axisWidths(meant.map((i) => cells.cases[i]));
    for (const i of meant) {
      body.append(this.#caseRow(i, "member", widths, meant));
      yield;
    }
    if (meant.length < all.length) {
      const rest = all.filter((i) => !meant.includes(i));
      const control = button(`Show the other ${many(rest.length, "case")} of this row too`, () => {});
      control.dataset.all = group;
      control.tabIndex = -1;
      const note = make("tr.rest", make("td", control));
      note.cells[0].colSpan = this.chosen.columns.length + 1;
      body.append(note);
      yield;
    }
  }

  /** Cases of a row that the filter leaves out: what fails is understood beside what does not. */
  #showAll(control) {
    const row = control.closest("tr");
    const group = Number(control.dataset.all);
    const all = this.cells.members[group];
    const widths = axisWidths(all.map((i) => this.cells.cases[i]));
    const rest = all.filter((i) => !this.chosen.shown[i]);
    const rows = rest.map((i) => this.#caseRow(i, "member", widths, all));
    for (const one of rows) one.classList.add("beside-filter");
    row.replaceWith(...rows);
    $("button", rows[0])?.focus();
  }

  #isOpen(id, otherwise) {
    return this.asked.open.has(id) || (otherwise && !this.asked.shut.has(id));
  }

  #head() {
    const { targets } = this.cells;
    const heads = this.chosen.columns.map((column) => {
      const { label, device, unavailable } = targets[column];
      const head = make("th", make("bdi.target", breakable(label)), unavailable && make("small", "not available"));
      head.title = device;
      return head;
    });
    const line = make("tr", make("th", "May I call it like this?"), heads);
    for (const head of line.cells) head.scope = "col";
    return make("thead", line);
  }

  #row(kind, id, head, scope, tds, among) {
    head.scope = scope;
    const row = make(`tr.${kind}`, head, tds);
    row.id = id;
    row.among = among;
    return row;
  }

  #themeRow(theme, open, groups, members) {
    const { cells } = this;
    const { name, question } = cells.themes[theme];
    const all = cells.byTheme[theme].flatMap((group) => cells.members[group]);
    const heading = make("h2", this.#fold(question, open));
    const note = make("small", make("span.id", name), ` ${many(groups.length, "row")}, ${this.#count(all)}`);
    return this.#row("theme", name, make("th", heading, note), "rowgroup", this.#tallies(members), members);
  }

  /** How many cases of a row are asked for, if not all. */
  #count(all) {
    const asked = all.filter((i) => this.chosen.shown[i]).length;
    return asked < all.length ? `${asked} of ${many(all.length, "case")}` : many(all.length, "case");
  }

  #groupRow(group, open, members) {
    const { id, name, title, why } = this.cells.groups[group];
    const head = make(
      "th",
      make("div.name", this.#fold(title, open), make("small", make("span.id", name), ` ${this.#count(this.cells.members[group])}`)),
      why && make("p", make("bdi", why)),
    );
    return this.#row("group", id, head, "row", this.#tallies(members), members);
  }

  #fold(text, open) {
    const control = make("button.fold", make("bdi", text));
    control.type = "button";
    control.setAttribute("aria-expanded", String(open));
    control.tabIndex = -1;
    return control;
  }

  #tallies(members) {
    return this.chosen.columns.map((column) => {
      const tally = this.cells.tally(members, column);
      if (!tally) return make("td.none", "no result");
      const { verdict, colour, number, total, counts, ranks, unexpected, known, vague, open, first } = tally;
      const notes = [
        number === total ? `all ${total}` : `${number} of ${total}`,
        vague > 0 && `${vague} vague`,
        open > 0 && `${open} not promised`,
        verdict !== "skip" && counts.skip && `${counts.skip} not tried`,
        unexpected > 0 ? make("b", `${unexpected} unexpected`) : known > 0 && make("b", `${known} known`),
      ].filter(Boolean);
      const control = make(
        `button.v.tally.${colour}.${unexpected ? "unexpected" : known ? "known" : ""}`,
        icon(verdict),
        make("span", verdict),
        make("small", notes.flatMap((note, i) => [i > 0 && " ", make("span", note, i < notes.length - 1 && " ·")])),
      );
      const parts = this.cells.verdicts.filter((name) => counts[name]);
      control.title = parts.map((name) => `${counts[name]} ${name}`).join(", ");
      return make("td", this.#cell(control, first, column), number < total && this.#bar(ranks, total));
    });
  }

  #cell(control, number, column) {
    control.type = "button";
    control.tabIndex = -1;
    control.dataset.case = number;
    control.dataset.column = column;
    return control;
  }

  #bar(counts, total) {
    let start = 0;
    const parts = this.cells.verdicts.filter((name) => counts[name]).map((name) => {
      const part = draw("rect", { class: name, x: start, width: counts[name], height: 1 });
      start += counts[name];
      return part;
    });
    const box = { class: "bar", viewBox: `0 0 ${total} 1`, preserveAspectRatio: "none", "aria-hidden": "true" };
    return draw("svg", box, ...parts);
  }

  #caseRow(i, kind, widths = null, among = null) {
    const { cells } = this;
    const one = cells.cases[i];
    const group = cells.groups[one.group];
    const anchor = make("a", kind === "single" ? make("bdi", group.title) : this.#axes(one, widths) ?? make("bdi", one.id));
    anchor.href = toAddress({ ...nothingAsked(), anchor: one.id });
    anchor.tabIndex = -1;
    const head =
      kind === "single"
        ? make(
            "th",
            make("div.name", anchor, make("small", make("span.id", group.name)), this.#axes(one, null)),
            group.why && make("p", make("bdi", group.why)),
          )
        : make("th", anchor);
    const tds = this.chosen.columns.map((column) => {
      const result = one.results[column];
      if (!result) return make("td.none", "no result");
      const mark = markOf(result);
      const control = make(
        `button.v.${ranksAs(result)}.${mark}`,
        icon(result.verdict),
        make("span", result.verdict),
        result.note && make("i", result.note),
        result.vague && make("i", "vague"),
        notPromised(result) && make("i", "not promised"),
        mark && make("b", mark),
      );
      return make("td", this.#cell(control, i, column));
    });
    return this.#row(kind, one.id, head, "row", tds, among);
  }

  #axes(one, widths) {
    const pairs = Object.entries(one.axes ?? {});
    if (!pairs.length) return null;
    return make(
      "span.axes",
      pairs.map(([axis, label]) => {
        const part = make("span", make("i", axis), " ", make("bdi", label));
        if (widths) part.style.minWidth = `${widths[axis]}ch`;
        return part;
      }),
    );
  }

  /** The axes as a small table a target: one axis across, the others down; null if it would be a list. */
  #gridRow(group, members) {
    const { cells } = this;
    const ones = members.map((i) => ({ i, axes: cells.cases[i].axes ?? {} }));
    const names = [...new Set(ones.flatMap(({ axes }) => Object.keys(axes)))];
    const labels = (name) => [...new Set(ones.map(({ axes }) => axes[name] ?? ""))];
    const varied = names.filter((name) => labels(name).length > 1);
    if (varied.length < 2 || ones.length < 4) return null;
    const across = varied.reduce((best, name) => {
      const fits = labels(name).join("").length <= 40;
      return fits && labels(name).length >= labels(best).length ? name : best;
    });
    const down = varied.filter((name) => name !== across);
    const key = (axes) => down.map((name) => axes[name] ?? "").join(", ");
    const lines = [...new Set(ones.map(({ axes }) => key(axes)))];
    const places = labels(across);
    const at = new Map(ones.map(({ i, axes }) => [`${key(axes)}\n${axes[across] ?? ""}`, i]));
    if (at.size < ones.length) return null; // two of them would share a place
    const tables = this.chosen.columns.map((column) => {
      const heads = [make("th", down.join(", ")), ...places.map((label) => make("th", make("bdi", label)))];
      const table = make(
        "table",
        make("caption", make("bdi.target", cells.targets[column].label), ` by ${across}`),
        make("thead", make("tr", heads)),
        make(
          "tbody",
          lines.map((line) =>
            make(
              "tr",
              make("th", make("bdi", line)),
              places.map((label) => {
                const i = at.get(`${line}\n${label}`);
                const result = i == null ? null : cells.cases[i].results[column];
                if (!result) return make("td");
                const mark = markOf(result);
                const control = make(`button.v.${ranksAs(result)}.${mark}`, icon(result.verdict));
                const note = result.note ? ` (${result.note})` : "";
                const words = `${result.verdict}${note}${mark && `, ${mark}`}: ${line}, ${label}`;
                control.setAttribute("aria-label", words);
                control.title = words;
                return make("td", this.#cell(control, i, column));
              }),
            ),
          ),
        ),
      );
      for (const head of table.tHead.rows[0].cells) head.scope = "col";
      for (const row of table.tBodies[0].rows) row.cells[0].scope = "row";
      return table;
    });
    const box = make("td", make("div.grids", tables));
    box.colSpan = this.chosen.columns.length + 1;
    const row = make("tr.grid", box);
    row.among = members;
    return row;
  }

  // ── Keys ────────────────────────────────────────────────────────────────────────────────────────

  /** What the tab key leads to: one place in the whole table; the arrows lead on from there. */
  #aimAt(element) {
    for (const other of $$("[tabindex='0']", this.table)) other.tabIndex = -1;
    element.tabIndex = 0;
    if (element.closest("#matrix tr[id]")) this.current = this.#place(element);
  }

  #place(element) {
    const row = element.closest("#matrix tr[id]");
    return `${element.closest("td, th")?.cellIndex ?? 0} ${row?.id ?? ""}`;
  }

  #current(place = this.current) {
    const [column, ...id] = place.split(" ");
    const there = stops(this.#byId(id.join(" ")))[Number(column)];
    return there ?? $(".v, .fold", this.table);
  }

  #move(event) {
    const at = event.target.closest("td, th");
    const lead = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const edge = { Home: 0, End: -1 }[event.key];
    if (!at || event.ctrlKey || event.altKey || event.metaKey || (!lead && edge == null)) return;
    event.preventDefault();
    const row = at.parentElement;
    let next;
    if (edge != null || lead[1]) {
      const line = stops(row).filter(Boolean);
      const here = line.findIndex((one) => at.contains(one));
      next = line.at(edge ?? Math.max(0, Math.min(line.length - 1, here + lead[1])));
    } else {
      const rows = $$("tr", this.table).filter((one) => stops(one).some(Boolean));
      next = near(stops(rows[rows.indexOf(row) + lead[0]]), at.cellIndex);
    }
    next?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }
}

/** What can be reached in each cell of a row. */
function stops(row) {
  if (!row || row.matches("thead tr")) return [];
  return [...row.cells].map((cell) => (cell.querySelector("table") ? null : $(".v, .fold, a, button", cell)));
}

/** The stop of a column, or the one nearest to it. */
function near(line, column) {
  const found = line.map((stop, i) => [stop, Math.abs(i - column)]).filter(([stop]) => stop);
  return found.sort((one, other) => one[1] - other[1])[0]?.[0];
}

/** A target's name, which may break where its parts begin. */
function breakable(label) {
  return label.split(/(?=[@+])/).flatMap((part, i) => (i ? [document.createElement("wbr"), part] : [part]));
}

function markOf(result) {
  return result.unexpected ? "unexpected" : result.expectation != null ? "known" : "";
}

/** In characters, so that the axes of a row's cases stand below each other. */
function axisWidths(cases) {
  const widths = Object.create(null);
  for (const { axes } of cases) {
    for (const [axis, label] of Object.entries(axes ?? {})) {
      widths[axis] = Math.max(widths[axis] ?? 0, axis.length + 1 + Math.min(label.length, 30));
    }
  }
  return widths;
}
