// Connects the table, the filters, the panel, the keyboard and the address.
"use strict";
document.documentElement.classList.add("js");

const WRITTEN = "written"; // the state of the entries of the history that the page has shown

document.addEventListener("DOMContentLoaded", async () => {
  const cells = new Cells(await unpack($("#cells")));
  const panel = $("#panel");
  const search = $("#search");
  // Found before there are rows, whose ids can be anything.
  const [nothing, unknown] = [$("#nothing"), $("#unknown")];
  const matrix = new Matrix($("#matrix"), cells, { open: openPanel, fold, unfold });
  let query = emptyQuery();
  let opener = null; // gets the focus when the panel closes
  let at = null; // { row, column, siblings } of the panel
  let typing = false; // whether the last entry of the history is of what is being typed

  // ── Query ─────────────────────────────────────────────────────────────────────────────────────

  /** Changes the query, updates the table and writes the address. */
  function setQuery(change, entry = "new") {
    query = { ...query, ...change };
    updateTable();
    writeAddress(entry);
  }

  /** Changes a filter, and forgets what was collapsed by hand under the last one. */
  const setFilter = (change, entry = "new") => setQuery({ shut: new Set(), ...change }, entry);

  /** Searches for what is typed, which is one entry of the history. */
  const setSearch = (q) => setFilter({ q }, "typed");

  function updateTable() {
    const selection = cells.select(query);
    matrix.show(query, selection);
    if (at) matrix.mark(at.row, at.column);
    for (const control of $$("[data-filter]")) {
      const { filter: name, value } = control.dataset;
      const on = value == null ? query[name] : query[name].has(value);
      control.setAttribute("aria-pressed", String(on));
    }
    for (const select of $$("select[data-list]")) select.value = [...query[select.dataset.list]][0] ?? "";
    $("#sort").value = query.sort;
    for (const field of [search, $("#find")]) if (field.value !== query.q) field.value = query.q;
    showHits(selection.cases);
    const all = cells.cases.length;
    const symptoms = [...query.symptom].map((text) => `“${text.length > 140 ? `… ${text.slice(-140)}` : text}”`).join(" or ");
    $("#shown").textContent = isFiltered(query)
      ? `${selection.cases.toLocaleString("en")} of ${plural(all, "case")}, ${plural(selection.results, "result")}${symptoms && ` with the symptom ${symptoms}`}`
      : plural(all, "case");
    unknown.hidden = true;
    $("#reset").hidden = !isFiltered(query) && !query.target.size;
    $("#unfold").setAttribute("aria-pressed", String(cells.themes.every(({ name }) => query.open.has(name))));
    nothing.hidden = selection.cases > 0;
  }

  /** While something is searched, shows only what was found: what a message means, the models that are named, the calls. */
  function showHits(calls) {
    const searched = Boolean(query.q.trim());
    const models = findModels(query.q);
    const meanings = showMeanings(query.q);
    const first = query.q.toLowerCase().match(/[a-z0-9]+/)?.[0];
    const isNamed = (family) => !family.hidden && family.dataset.name.toLowerCase().replace(/[^a-z0-9]/g, "").includes(first);
    const named = Boolean(first) && $$(".models .family").some(isNamed);
    document.body.classList.toggle("searching", searched);
    const table = $(".which");
    if (table) table.hidden = searched && !named && (calls > 0 || meanings > 0);
    const counted = [meanings > 0 && plural(meanings, "explanation"), table && !table.hidden && plural(models, "model"), plural(calls, "call")];
    $("#found").textContent = searched ? flattened(counted).join(", ") : "";
    $("#to-calls").hidden = !searched || !calls || !named;
  }

  /** Writes the query into the address: as a new entry of the history, one of what is `typed`, or the `same` one. */
  function writeAddress(entry) {
    const address = formatAddress(query);
    const isNew = entry === "new" || (entry === "typed" && !typing);
    const isOther = address !== formatAddress(parseAddress(location.hash));
    typing = entry === "typed" || (typing && entry === "same");
    history[isNew && isOther ? "pushState" : "replaceState"](WRITTEN, "", address);
  }

  function fold(id, open) {
    const [opened, shut] = [new Set(query.open), new Set(query.shut)];
    opened.delete(id);
    shut.delete(id);
    (open ? opened : shut).add(id);
    if (!at && matrix.row(id)?.matches(".theme, .group")) query.anchor = open ? id : ""; // for a link to the row
    const control = () => $(".fold", matrix.row(id) ?? make("tr"));
    keepInPlace(control, () => setQuery({ open: opened, shut }, "same"));
    control()?.focus({ preventScroll: true });
  }

  /** Shows a column for each release of a series, or only that of its newest. */
  function unfold(series, open) {
    const releases = new Set(query.releases);
    if (open) releases.add(series);
    else releases.delete(series);
    keepInPlace(() => null, () => setQuery({ releases }));
    matrix.releasesButton(series)?.focus({ preventScroll: true });
  }

  /** Changes the layout, and scrolls so that an element on the screen stays there, or else the first row. */
  function keepInPlace(element, change) {
    const id = matrix.rowOnScreen()?.id;
    const kept = isOnScreen(element()) ? element : () => (id == null ? null : matrix.row(id));
    const before = kept()?.getBoundingClientRect().top;
    change();
    matrix.fit();
    const after = kept()?.getBoundingClientRect().top;
    if (before != null && after != null) scrollBy(0, after - before);
  }

  for (const control of $$("[data-filter]")) {
    control.addEventListener("click", () => {
      const { filter: name, value } = control.dataset;
      if (value == null) return setFilter({ [name]: !query[name] });
      const values = new Set(query[name]);
      if (!values.delete(value)) values.add(value);
      setFilter({ [name]: values });
    });
  }
  for (const select of $$("select[data-list]")) {
    select.addEventListener("change", () =>
      setFilter({ [select.dataset.list]: new Set(select.value ? [select.value] : []) }),
    );
  }
  $("#sort").addEventListener("change", (event) => setQuery({ sort: event.target.value }));
  $(".jump").addEventListener("click", (event) => {
    event.preventDefault(); // the fragment holds the query
    matrix.enter();
  });
  panel.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#page:']");
    if (!link) return;
    event.preventDefault();
    const page = findingBox(decodeURIComponent(link.getAttribute("href").slice(6)), true);
    link.closest(".finding").after(page);
    $("summary", page).focus();
  });
  panel.addEventListener("click", (event) => {
    const release = event.target.closest(".releases a");
    if (!release || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const place = at.row;
    openPanel(place, Number(release.dataset.column), null, at.siblings);
    $(".releases [aria-current]", panel)?.focus();
  });
  search.addEventListener("input", () => keepInPlace(() => search, () => setSearch(search.value)));
  const finder = $("#find");
  finder.addEventListener("input", () => setSearch(finder.value));
  finder.addEventListener("keydown", (event) => {
    if (event.key === "Enter") (findModels(finder.value) ? $("#which-model") : $("#matrix")).scrollIntoView();
  });
  $("#to-calls").addEventListener("click", () => $("#matrix").scrollIntoView());
  $("#reset").addEventListener("click", () => {
    setQuery({ ...emptyQuery(), anchor: query.anchor, open: query.open, releases: query.releases, sort: query.sort });
    if (!narrow.matches) search.focus();
  });
  $("#unfold").addEventListener("click", (event) => {
    const all = event.target.getAttribute("aria-pressed") !== "true";
    const names = cells.themes.map(({ name }) => name);
    setQuery({ open: new Set(all ? names : []), shut: new Set(all ? [] : names) }, "same");
  });

  // ── The panel ─────────────────────────────────────────────────────────────────────────────────

  /** Whether a case was tried and is not right. */
  const fails = (i, column) => ![null, "right"].includes(cells.cases[i].results[column]?.look.part ?? null);

  /** Opens the panel on a cell. `from`: what was clicked; `siblings`: the cases to step through. */
  function openPanel(row, column, from = null, siblings = null, entry = "new") {
    const one = cells.cases[row];
    if (!one?.results[column]) return;
    if (from?.closest("#matrix :is(.theme, .group, .symptom)") && siblings) {
      siblings = [...siblings].sort((a, b) => {
        const [x, y] = [a, b].map((i) => cells.cases[i].results[column].look);
        return isWorse(x, y) ? -1 : isWorse(y, x) ? 1 : 0;
      });
      row = siblings[0];
      // From a cell with failures one steps through these.
      if (fails(row, column)) siblings = siblings.filter((i) => fails(i, column));
    }
    opener = from ?? opener;
    at = { row, column, siblings: siblings?.length > 1 ? siblings : null };
    keepInPlace(() => opener, fillPanel);
    panel.focus({ preventScroll: true });
    writeAddress(entry);
  }

  function fillPanel() {
    const { row, column, siblings } = at;
    const details = new Details(cells, row, column);
    const { look, about, group, target } = details;
    query.anchor = `${about.id}@${target.label}`;
    const { mark, note } = look;
    const verdict = make(`span.v.${look.colour}.${mark}`, icon(look.drawing), look.word, note && make("i", note), mark && make("b", mark));
    const place = siblings?.indexOf(row);
    const steps = siblings && [
      button("Previous", () => step(-1), "button.step"),
      make("span", `case ${place + 1} of ${siblings.length}${siblings.every((i) => fails(i, column)) ? " that fail" : ""}`),
      button("Next", () => step(1), "button.step"),
    ];
    if (steps) [steps[0].disabled, steps[2].disabled] = [place === 0, place === siblings.length - 1];
    const address = make("p.address");
    address.hidden = true;
    const share = button("Copy link", () => copyLink(share, address), "button.share");
    const parts = flattened(
      make("div.top", verdict, make("span", "on ", make("bdi.target", breakable(target.label))), share, button("Close", closePanel, "button.close")),
      address,
      steps && make("div.steps", steps),
      make("h2", prose(group.title)),
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
    const next = at?.siblings?.[at.siblings.indexOf(at.row) + by];
    if (next == null) return;
    at.row = next;
    const hadFocus = document.activeElement.matches(".step");
    fillPanel();
    const same = $$("#panel .step")[by < 0 ? 0 : 1];
    (hadFocus && !same.disabled ? same : panel).focus({ preventScroll: true });
    writeAddress("same");
  }

  function closePanel() {
    const { row } = at;
    hidePanel();
    query.anchor = cells.cases[row].id;
    writeAddress("new");
  }

  function hidePanel() {
    const { row } = at;
    const back = () => (opener?.isConnected ? opener : $("button", matrix.row(cells.cases[row].id) ?? make("tr")));
    keepInPlace(back, () => {
      panel.hidden = true;
      document.documentElement.classList.remove("beside");
    });
    matrix.mark();
    (back() ?? $("#copy-link")).focus({ preventScroll: true });
    opener = at = null;
  }

  $("#copy-link").addEventListener("click", (event) => copyLink(event.target, $("#address")));

  // On a phone the first results are on the first screen, and the lists above them are folded.
  const narrow = matchMedia("screen and (max-width: 46rem)");
  const makeRoom = () => $$("details.roomy").forEach((box) => (box.open = !narrow.matches));
  narrow.addEventListener("change", makeRoom);
  makeRoom();

  /** Puts the focus into the search field, unfolded if it is folded. */
  function enterSearch() {
    search.closest("details").open = true;
    search.focus();
  }

  // ── Keyboard and address ──────────────────────────────────────────────────────────────────────

  const help = $("#help");
  $("#show-help").addEventListener("click", () => help.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || help.open) return;
    const inField = event.target.matches("input, textarea");
    if (event.target === search && ["Enter", "ArrowDown"].includes(event.key)) {
      event.preventDefault();
      matrix.enter();
      return;
    }
    if (event.key === "Escape") {
      if (at) closePanel();
      else if (inField && query.q) setFilter({ q: "" });
      return;
    }
    const share = () => $(at ? "#panel .share" : "#copy-link").click();
    const actions = { "/": enterSearch, c: share, "?": () => help.showModal(), j: () => step(1), k: () => step(-1) };
    if (inField || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });

  /** Expands what contains the row of a name, and scrolls to it (`jump`: even if it is on the screen), even if a filter hides it. */
  function reveal(id, jump) {
    const single = cells.groups.findIndex((group) => group.id === id);
    const number = cells.numbers.get(id) ?? (single >= 0 && cells.members[single].length === 1 ? cells.members[single][0] : undefined);
    const group = number == null ? single : cells.cases[number].group;
    const theme = group >= 0 ? cells.themes[cells.groups[group].theme].name : id;
    if (group < 0 && !cells.themes.some(({ name }) => name === id)) return null;
    const opened = new Set(query.open).add(theme);
    if (group >= 0) opened.add(cells.groups[group].id);
    const name = number == null ? id : cells.cases[number].id;
    if (number == null || !matrix.row(name)) {
      query.open = opened;
      updateTable();
    }
    if (!matrix.row(name)) {
      query = { ...emptyQuery(), anchor: query.anchor, open: opened, releases: query.releases };
      updateTable();
    }
    const row = matrix.row(name);
    $("#matrix .aimed")?.classList.remove("aimed");
    row?.classList.add("aimed");
    if (jump || !isOnScreen(row)) row?.scrollIntoView({ block: "center" });
    return row;
  }

  function applyAddress(jump) {
    query = parseAddress(location.hash);
    const { anchor } = query;
    const caseOf = ({ label }) => (anchor.endsWith(`@${label}`) ? anchor.slice(0, -label.length - 1) : null);
    const column = cells.targets.findIndex((target) => cells.numbers.has(caseOf(target)));
    const series = cells.series[cells.seriesOf[column]];
    if (series && !cells.select(query).columns.includes(column)) query.releases.add(series.label); // it is folded
    updateTable();
    if (column < 0) {
      if (at) hidePanel();
      const unresolved = Boolean(anchor) && !reveal(anchor, jump);
      unknown.hidden = !unresolved;
      $("bdi", unknown).textContent = unresolved ? anchor : "";
      writeAddress("same");
      return;
    }
    const number = cells.numbers.get(caseOf(cells.targets[column]));
    reveal(cells.cases[number].id, jump);
    const cell = matrix.cell(number, column);
    openPanel(number, column, cell, cell && matrix.siblings(cell), "same");
  }

  /** Applies the address. Scrolls to what it selects, unless Back or Forward led to an entry that was shown before. */
  function openAddress() {
    const jump = history.state !== WRITTEN;
    typing = false;
    applyAddress(jump);
    if (jump && !query.anchor && !query.q && (isFiltered(query) || query.target.size)) $(".tools").scrollIntoView();
  }

  addEventListener("hashchange", openAddress);
  addEventListener("beforeprint", () => matrix.finish());
  openAddress();
  document.documentElement.classList.add("ready");
  document.dispatchEvent(new Event("ready"));
  performance.mark("ready");
});
