// The search page, which is also opened from a file: excerpts come from searchtexts.js, since no page may be fetched
// there. Words are searched in both spellings, and names that the book does not use by those that it uses.
document.addEventListener("DOMContentLoaded", () => {
  const EXACT = 20 // points beside those of Sphinx: 15 for a word in a title, 5 for one in the text
  const SPELLINGS = [
    ["behaviour", "behavior"], ["centre", "center"], ["colour", "color"], ["defence", "defense"], ["favour", "favor"],
    ["grey", "gray"], ["neighbour", "neighbor"],
  ]
  const NAMES = {
    fedavg: ["federated averaging", "local steps"],
    fedsgd: ["federated averaging"],
    lora: ["adapters"],
    vit: ["vision transformers", "attention"],
  }
  const respelled = word => {
    for (const [one, other] of [...SPELLINGS, ...SPELLINGS.map(pair => pair.toReversed())])
      if (word.startsWith(one)) return other + word.slice(one.length)
    return word.replace(/i([sz])(?=(e[ds]?|ing|ations?|ers?)$)/, (_, letter) => letter === "s" ? "iz" : "is")
  }
  const textOf = page => window.searchTexts[page] ?? ""
  const whole = (phrase, flags = "i") => new RegExp(`(?<!\\w)${_escapeRegExp(phrase)}(?!\\w)`, flags)
  const says = (page, phrase, flags) => whole(phrase, flags).test(textOf(page))

  // Searches that together find what is asked for: each is a text and the phrases that a page must hold as they stand.
  const searches = asked => {
    let found = [{ text: asked, phrases: [] }]
    for (const word of splitQuery(asked)) {
      const lower = word.toLowerCase(), names = NAMES[lower], other = respelled(lower)
      const choices = [word, ...(names ?? (other === lower ? [] : [other]))]
      found = found.flatMap(({ text, phrases }) => choices.map(choice => (
        { text: text.replace(word, choice), phrases: names ? [...phrases, choice] : phrases }
      )))
    }
    return found
  }

  const excerpt = (page, words) => {
    const text = textOf(page), lower = text.toLowerCase()
    const places = [...words.map(word => text.search(whole(word))), ...words.map(word => lower.indexOf(word))]
    const at = places.find(place => place >= 0) ?? 0
    const start = at < 120 ? 0 : text.indexOf(" ", at - 120) + 1
    const shown = text.slice(start, start + 240).trim()
    return (start ? "…" : "") + shown + (start + 240 < text.length ? "…" : "")
  }

  Search.query = asked => {
    const results = new Map(), used = [], first = asked.replace(/\s*,\s*/g, " ")
    for (const { text, phrases } of searches(first)) {
      const parsed = Search._parseQuery(text)
      const pages = Search._performSearch(...parsed).filter(([page]) => phrases.every(phrase => says(page, phrase)))
      if (pages.length) used.push(text)
      for (const result of pages) {
        const [page, title, anchor, , points] = result, key = page + anchor
        // "Flower" finds Flowers-17 as well, but first what holds the word as it stands, its capitals too.
        const score = points + (says(page, text, text === text.toLowerCase() ? "i" : "") ? EXACT : 0)
        const section = anchor ? [title.split(" > ").pop()] : []
        const words = [...section, text, ...phrases, ...parsed[3], ...parsed[1]]
        if (!(results.get(key)?.score >= score)) results.set(key, { result, score, words })
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
    if (results.size && !used.includes(first)) Search.status.append(` No page holds “${first}”.`)
    const others = used.filter(text => text !== first)
    if (others.length) Search.status.append(` Searched for as well: ${others.map(text => `“${text}”`).join(", ")}.`)
  }
})
