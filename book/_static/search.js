// The search page, which is also opened from a file: excerpts come from searchtexts.js, since no page may be fetched
// there. Words are searched in the British and in the American spelling.
document.addEventListener("DOMContentLoaded", () => {
  const SPELLINGS = [
    ["behaviour", "behavior"], ["centre", "center"], ["colour", "color"], ["defence", "defense"], ["favour", "favor"],
    ["grey", "gray"], ["neighbour", "neighbor"],
  ]
  const respelled = word => {
    for (const [one, other] of [...SPELLINGS, ...SPELLINGS.map(pair => pair.toReversed())])
      if (word.startsWith(one)) return other + word.slice(one.length)
    return word.replace(/i([sz])(?=(e[ds]?|ing|ations?|ers?)$)/, (_, letter) => letter === "s" ? "iz" : "is")
  }
  const excerpt = (page, words) => {
    const text = window.searchTexts[page] ?? "", lower = text.toLowerCase()
    const at = words.map(word => lower.indexOf(word.toLowerCase())).find(place => place >= 0) ?? 0
    const start = at < 120 ? 0 : text.indexOf(" ", at - 120) + 1
    const shown = text.slice(start, start + 240).trim()
    return (start ? "…" : "") + shown + (start + 240 < text.length ? "…" : "")
  }

  Search.query = asked => {
    const first = asked.replace(/\s*,\s*/g, " "), words = splitQuery(first).map(word => word.toLowerCase())
    const other = words.map(respelled).join(" ")
    const searches = [first, ...other === words.join(" ") ? [] : [other]]
    const results = new Map(), used = []
    for (const text of searches) {
      const parsed = Search._parseQuery(text)
      const found = Search._performSearch(...parsed)
      if (found.length) used.push(text)
      for (const result of found) {
        const [page, title, anchor, , score] = result, key = page + anchor
        const section = anchor ? [title.split(" > ").pop()] : []
        if (!(results.get(key)?.score >= score))
          results.set(key, { result, score, words: [...section, text, ...parsed[3], ...parsed[1]] })
      }
    }
    for (const { result, words } of [...results.values()].sort((one, other) => other.score - one.score)) {
      const [page, title, anchor, kind] = result
      const item = Search.output.appendChild(document.createElement("li"))
      const link = item.appendChild(document.createElement("a"))
      Object.assign(link, { href: page + DOCUMENTATION_OPTIONS.LINK_SUFFIX + anchor, innerHTML: title })
      const text = kind ? `(${kind})` : excerpt(page, words)
      item.append(Object.assign(document.createElement("p"), { className: "context", textContent: text }))
    }
    // Pages mark the words of all searches.
    Search._parseQuery(used.join(" "))
    _finishSearch(results.size)
    if (used.includes(other) && other !== first) Search.status.append(` Searched for as well: “${other}”.`)
  }
})
