// Which cases and results are asked for, and how they add up.
"use strict";

/** The cells of the page, with what is looked at for every key press made once. */
class Cells {
  constructor(data) {
    Object.assign(this, data);
    for (const { axes } of this.cases) if (axes) Object.setPrototypeOf(axes, null); // any names
    this.rank = Object.fromEntries(data.verdicts.map((verdict, i) => [verdict, i]));
    this.members = this.groups.map(() => []); // case numbers, by group
    this.cases.forEach((one, i) => this.members[one.group].push(i));
    this.byTheme = this.themes.map(() => []); // group numbers, by theme
    this.groups.forEach((group, i) => this.byTheme[group.theme].push(i));
    this.numbers = new Map(this.cases.map((one, i) => [one.id, i]));
    this.words = []; // of cases, in small letters; made when first looked for
    this.small = []; // of the pool's texts likewise
  }

  /** What a result says that may be looked for, as a number in the pool and its text. */
  #text(index) {
    const value = this.pool[index];
    return (this.small[index] ??= (typeof value === "string" ? value : Object.values(value).join("\n")).toLowerCase());
  }

  #caseText(i) {
    const { id, group, why, tags, links } = this.cases[i];
    const { title, theme } = this.groups[group];
    const { question } = this.themes[theme];
    const said = [why, tags, links].map((index) => (index == null ? "" : this.#text(index)));
    return (this.words[i] ??= [id, title, question, ...said].join("\n").toLowerCase());
  }

  /** Whether a result says a word; `found` remembers it of texts that many have in common. */
  #says(result, word, found) {
    return [result.message, result.reason, result.expectation, result.stderr].some(
      (index) => index != null && (found[index] ??= this.#text(index).includes(word)),
    );
  }

  /**
   * What `asked` asks for: `columns` to show; `among[i]`, whether the case's words, tag and dtype
   * are asked for; `shown[i]`, whether one of its results is, too; how many there are; and
   * `meant(result)`, whether a result is of the verdicts and marks asked for.
   */
  select(asked) {
    const all = this.targets.map((_, i) => i);
    const columns = asked.target.size ? all.filter((i) => asked.target.has(this.targets[i].label)) : all;
    const words = wordsOf(asked.q).map((word) => ({ word, found: [] }));
    const among = new Uint8Array(this.cases.length);
    const shown = new Uint8Array(this.cases.length);
    const byResult = asked.verdict.size > 0 || asked.unexpected || asked.silent || asked.changed;
    const wanted = (result) =>
      (!asked.verdict.size || asked.verdict.has(result.verdict)) &&
      (!asked.unexpected || result.unexpected) &&
      (!asked.silent || ranksAs(result) === "wrong") &&
      (!asked.changed || result.change);
    let cases = 0;
    let results = 0;
    this.cases.forEach((one, i) => {
      const there = columns.map((column) => one.results[column]).filter(Boolean);
      if (asked.dtype.size && !asked.dtype.has(one.dtype)) return;
      if (asked.theme.size && !asked.theme.has(this.themes[this.groups[one.group].theme].name)) return;
      if (asked.tag.size && !(this.pool[one.tags] ?? []).some((tag) => asked.tag.has(tag))) return;
      const lacking = words.filter(({ word }) => !this.#caseText(i).includes(word));
      if (!lacking.every(({ word, found }) => there.some((one) => this.#says(one, word, found)))) return;
      among[i] = 1;
      if (asked.differs && !differ(there)) return;
      const meant = there.filter(wanted);
      if (byResult && !meant.length) return;
      shown[i] = 1;
      cases += 1;
      results += meant.length;
    });
    return { columns, among, shown, cases, results, meant: wanted };
  }

  /** The results of these cases on a target: the worst, how many of how many, the case to open. */
  tally(cases, column) {
    const [counts, ranks] = [{}, {}];
    let [total, unexpected, known, vague, open, first, worst] = [0, 0, 0, 0, 0, null, null];
    for (const i of cases) {
      const result = this.cases[i].results[column];
      if (!result) continue;
      total += 1;
      counts[result.verdict] = (counts[result.verdict] ?? 0) + 1;
      ranks[ranksAs(result)] = (ranks[ranksAs(result)] ?? 0) + 1;
      if (worst == null || this.#severity(result) < this.#severity(worst)) worst = result;
      if (result.unexpected) unexpected += 1;
      else if (result.expectation != null) known += 1;
      if (result.vague) vague += 1;
      if (notPromised(result)) open += 1;
      if (first == null || this.worse(result, this.cases[first].results[column])) first = i;
    }
    if (!total) return null;
    const { verdict } = worst;
    const number = counts[verdict];
    return { verdict, colour: ranksAs(worst), number, total, counts, ranks, unexpected, known, vague, open, first };
  }

  /** Whether one result is to be looked at before the other: what is unexpected, then the worst. */
  worse(one, other) {
    if (Boolean(one.unexpected) !== Boolean(other.unexpected)) return Boolean(one.unexpected);
    return this.#severity(one) < this.#severity(other);
  }

  /** A result's place in the order of severity: 0 is worst. */
  #severity(result) {
    return this.rank[ranksAs(result)];
  }

  /** By how bad they are on any of the columns: less is worse. Skipped is not bad. */
  badness(cases, columns) {
    let [unexpected, worst, number] = [0, this.verdicts.length, 0];
    for (const i of cases) {
      for (const column of columns) {
        const result = this.cases[i].results[column];
        if (!result || result.verdict === "skip") continue;
        if (result.unexpected) unexpected += 1;
        const rank = this.#severity(result);
        if (rank < worst) [worst, number] = [rank, 1];
        else if (rank === worst) number += 1;
      }
    }
    return [-unexpected, worst, -number];
  }
}

/** The verdict that a result is ordered and coloured by. */
const ranksAs = (result) => result.ranks_as ?? result.verdict;

/** What is looked for: words in any order, and what stands in quotes as it is. */
function wordsOf(text) {
  return [...text.toLowerCase().matchAll(/"([^"]+)"?|\S+/g)].map(([word, quoted]) => quoted ?? word);
}

/** A refusal of a call that nobody promised is neither a known defect nor unexpected. */
function notPromised(result) {
  return result.verdict === "unsupported" && !result.unexpected && result.expectation == null;
}

/** Whether those targets that were tried do not all end alike. */
function differ(results) {
  return new Set(results.map(({ verdict }) => verdict).filter((verdict) => verdict !== "skip")).size > 1;
}

/** For sorting by several numbers in turn. */
function inTurn(one, other) {
  const at = one.findIndex((value, i) => value !== other[i]);
  return at < 0 ? 0 : one[at] - other[at];
}
